"""An execution's folder on the host: a copy of the task's files, frozen when the harness ends.

Rule 1: the frozen state is never written; every assessment works on a copy of its own, or in a
sandbox that writes elsewhere.
Rule 2: a copy stands where the agent's workspace stood, so that absolute paths in it still lead
somewhere, and it is the frozen state to the byte, or it is not given out.
"""

import hashlib
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from gyre.storage import safe_dir
from gyre.types.errors import SandboxError, wrap_errors
from gyre.types.outcomes import State

CHUNK_BYTES = 2**20
PLACE = "place"
"""Folder that a sandbox keeps for itself."""
ROOT = "root"
"""Folder in there with what programs wrote onto a root of their own."""
OPAQUE = "user.overlay.opaque"


class Workspace:
    """The folders of one execution in which programs work, and what remains of them."""

    def __init__(self, folder: Path, *, stacks: bool = False, states: Path | None = None) -> None:
        """`stacks`: sandboxes put what programs write on top of a state, so nothing is copied.

        `states`: where the state is kept, unless it is the execution's only one.
        """
        self.live = folder / "workspace"
        self._states = folder if states is None else states
        self.frozen = self._states / "frozen"
        self.scratch = folder / "scratch"
        self.place = folder / PLACE
        self.frozen_root = self._states / "frozen-root"
        self._home = folder / "home"
        self._stacks = stacks
        self._seen: str | None = None
        """Fingerprint of the state whose contents were hashed last."""

    def prepare(self, files: str | None) -> None:
        """A fresh workspace that begins as a copy of these files; SandboxError if it cannot be."""
        with wrap_errors(SandboxError, f"workspace from {files}"):
            safe_dir.remove(self.live)
            self.live.mkdir(parents=True)
            if files is not None:
                copy(Path(files), self.live)

    def go_on(self, before: "Workspace") -> None:
        """What was frozen before stands where the agent works; what was done since is gone."""
        with wrap_errors(SandboxError, f"workspace from {before.frozen}"):
            safe_dir.remove(self.live)
            self.live.mkdir(parents=True)
            copy(before.frozen, self.live)
            if _is_folder(before.frozen_root):
                safe_dir.remove(self.place / ROOT)
                (self.place / ROOT).mkdir(parents=True)
                copy(before.frozen_root, self.place / ROOT, is_layer=True)

    def put(self, files: str) -> None:
        """These files are in the workspace too, in place of what has their names."""
        with wrap_errors(SandboxError, f"files of {files}"):
            copy(Path(files), self.live, is_over=True)

    def freeze(self) -> State | None:
        """What the workspace holds, out of reach; None if it is lost.

        Asking again, after a death half way, gives the same.
        """
        with wrap_errors(SandboxError, f"freezing {self.live}"):
            if not _is_folder(self.frozen):
                if not _is_folder(self.live):
                    return None
                self._states.mkdir(parents=True, exist_ok=True, mode=0o700)
                if _is_folder(self.place / ROOT):
                    (self.place / ROOT).rename(self.frozen_root)
                self.live.rename(self.frozen)
            for folder in self._parts():
                (unlock if self._stacks else seal)(folder)
            # Within the execution's folder, which may lie elsewhere when it is assessed.
            inside = str(self.frozen.relative_to(self.live.parent))
            return State(folder=inside, reference=self._reference())

    @contextmanager
    def fresh(self, state: State) -> Iterator[tuple[str, str]]:
        """A copy of the state that may be changed, and an empty folder beside it.

        Where sandboxes stack, the state itself, which they do not change.
        """
        try:
            self._clear()
            self.scratch.mkdir()
            if self._stacks:
                is_same = self._is_unchanged(state)
            else:
                self.live.mkdir()
                copy(self.frozen, self.live)
                is_same = content_hash(self.live) == state.reference
        except OSError as error:
            self._clear()
            raise SandboxError(f"copy of {self.frozen}: {error}") from error
        if not is_same:
            self._clear()
            message = f"{self.frozen}: its contents are not those that were frozen"
            raise SandboxError(message, retryable=False)
        try:
            yield str(self.frozen if self._stacks else self.live), str(self.scratch)
        finally:
            self._clear()

    def tidy(self, *, keeps: bool) -> None:
        """Removes what a closed execution does not need, and its state unless it is kept."""
        self._clear()
        with suppress(OSError):
            safe_dir.remove(self.place)
            for folder in () if keeps else (self.frozen, self.frozen_root, self._home):
                safe_dir.remove(folder)

    def _parts(self) -> list[Path]:
        return [part for part in (self.frozen, self.frozen_root) if _is_folder(part)]

    def _reference(self) -> str:
        """The hash by which the state is known; what is unchanged is not read again."""
        found = [content_hash(folder) for folder in self._parts()]
        self._seen = self._fingerprint()
        return found[0] if len(found) == 1 else hashlib.sha256(" ".join(found).encode()).hexdigest()

    def _is_unchanged(self, state: State) -> bool:
        return self._fingerprint() == self._seen or self._reference() == state.reference

    def _fingerprint(self) -> str:
        """Of names, sizes and times, the kernel's own included, which no program can set."""
        found = hashlib.sha256()
        for folder in self._parts():
            for visit in safe_dir.visits(folder):
                for entry in visit.entries:
                    name, one = visit.label_of(entry), entry.status
                    told = (name, one.st_ino, one.st_size, one.st_mtime_ns, one.st_ctime_ns)
                    found.update(repr(told).encode())
        return found.hexdigest()

    def _clear(self) -> None:
        # What cannot be removed now is found, and named, when the next copy is made.
        with suppress(OSError):
            safe_dir.remove(self.live)
            safe_dir.remove(self.scratch)


def content_hash(folder: Path) -> str:
    """SHA-256 of names, kinds, contents, link targets and who may execute; not of times or owners.

    Sockets, pipes and devices are left out, as they are of a copy; but the one device by which
    an overlay says that something below is gone counts, and so does a folder that hides all below.
    """
    state = hashlib.sha256()

    def add(*parts: bytes) -> None:
        for part in parts:
            state.update(len(part).to_bytes(8, "big") + part)

    for visit in safe_dir.visits(folder):
        for entry in visit.entries:
            name, mode = visit.label_of(entry), entry.status.st_mode
            if entry.is_link:
                add(b"link", name, os.fsencode(os.readlink(entry.name, dir_fd=visit.at)))
            elif entry.is_folder:
                add(b"hiding folder" if _hides(visit.at, entry.name) else b"folder", name)
            elif _is_gone(entry):
                add(b"gone", name)
            elif entry.is_file:
                kind = b"program" if mode & stat.S_IXUSR else b"file"
                add(kind, name, _digest(visit.at, entry.name))
    return state.hexdigest()


def copy(source: Path, target: Path, *, is_over: bool = False, is_layer: bool = False) -> None:
    """Everything in one folder also in the other, which exists; files are writable there.

    `is_over`: what has the same name there gives way, and links there are not followed.
    `is_layer`: with what an overlay says of the folders below it.
    """
    to = os.open(target, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for visit in safe_dir.visits(source):
            if visit.name is not None:
                above = safe_dir.climbed(to, visit.up)
                os.close(to)
                to = above
                below = safe_dir.entered(to, visit.name)
                os.close(to)
                to = below
            for entry in visit.entries:
                if is_over:
                    _give_way(to, entry)
                _copy(visit.at, entry, to, is_over=is_over, is_layer=is_layer)
    finally:
        os.close(to)


def seal(folder: Path) -> None:
    """Nothing in it can be written, everything can be read."""
    for visit in safe_dir.visits(folder, opens=True):
        for entry in visit.entries:
            if entry.is_file:
                mode = stat.S_IMODE(entry.status.st_mode) | stat.S_IRUSR
                os.chmod(entry.name, mode & ~(0o222 | safe_dir.BORROWED), dir_fd=visit.at)
        os.fchmod(visit.at, 0o500)


def unlock(folder: Path) -> None:
    """Everything in it can be read by its owner, without set-id bits; no other change."""
    for visit in safe_dir.visits(folder, opens=True):
        for entry in visit.entries:
            if entry.is_file:
                safe_dir.permit(entry.name, stat.S_IRUSR, at=visit.at)


def _copy(at: int, entry: safe_dir.FolderEntry, to: int, *, is_over: bool, is_layer: bool) -> None:
    name = entry.name
    if entry.is_link:
        os.symlink(os.readlink(name, dir_fd=at), name, dir_fd=to)
    elif entry.is_folder:
        try:
            os.mkdir(name, 0o700, dir_fd=to)
        except FileExistsError:
            if not is_over:
                raise
        if is_layer and _hides(at, name):
            os.setxattr(f"/proc/self/fd/{to}/{name}", OPAQUE, b"y", follow_symlinks=False)
    elif is_layer and _is_gone(entry):
        os.mknod(name, stat.S_IFCHR, os.makedev(0, 0), dir_fd=to)
    elif entry.is_file:
        _copy_file(at, entry, to)


def _copy_file(at: int, entry: safe_dir.FolderEntry, to: int) -> None:
    made = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with (
        os.fdopen(_to_read(at, entry.name), "rb") as source,
        os.fdopen(os.open(entry.name, made, 0o600, dir_fd=to), "wb") as target,
    ):
        shutil.copyfileobj(source, target, CHUNK_BYTES)
        target.flush()
        mode = stat.S_IMODE(entry.status.st_mode) | stat.S_IRUSR | stat.S_IWUSR
        os.fchmod(target.fileno(), mode)
        os.utime(target.fileno(), ns=(entry.status.st_atime_ns, entry.status.st_mtime_ns))


def _give_way(to: int, entry: safe_dir.FolderEntry) -> None:
    """Nothing stands where the entry goes, unless both are folders."""
    try:
        there = os.stat(entry.name, dir_fd=to, follow_symlinks=False)
    except FileNotFoundError:
        return
    if stat.S_ISDIR(there.st_mode):
        if not entry.is_folder:
            safe_dir.remove(Path(f"/proc/self/fd/{to}/{entry.name}"))
    else:
        os.unlink(entry.name, dir_fd=to)


def _to_read(at: int, name: str) -> int:
    return os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=at)


def _is_gone(entry: safe_dir.FolderEntry) -> bool:
    """The device by which an overlay says that what lies below it is gone."""
    return stat.S_ISCHR(entry.status.st_mode) and entry.status.st_rdev == 0


def _hides(at: int, name: str) -> bool:
    """Whether a folder of an overlay hides what lies below it."""
    try:
        found = os.getxattr(f"/proc/self/fd/{at}/{name}", OPAQUE, follow_symlinks=False)
    except OSError:
        return False
    return found == b"y"


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def _digest(at: int, name: str) -> bytes:
    found = hashlib.sha256()
    with os.fdopen(_to_read(at, name), "rb") as file:
        while block := file.read(CHUNK_BYTES):
            found.update(block)
    return found.digest()
