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

from gyre.words.errors import SandboxError
from gyre.words.outcomes import State

CHUNK_BYTES = 2**20
PLACE = "place"
"""Folder that a sandbox keeps for itself."""
ROOT = "root"
"""Folder in there with what programs wrote onto a root of their own."""
BORROWED = stat.S_ISUID | stat.S_ISGID
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
        try:
            remove(self.live)
            self.live.mkdir(parents=True)
            if files is not None:
                copy(Path(files), self.live)
        except OSError as error:
            message = f"workspace from {files}: {error}"
            raise SandboxError(message) from error

    def go_on(self, before: "Workspace") -> None:
        """What was frozen before stands where the agent works; what was done since is gone."""
        try:
            remove(self.live)
            self.live.mkdir(parents=True)
            copy(before.frozen, self.live)
            if _is_folder(before.frozen_root):
                remove(self.place / ROOT)
                (self.place / ROOT).mkdir(parents=True)
                copy(before.frozen_root, self.place / ROOT, is_layer=True)
        except OSError as error:
            message = f"workspace from {before.frozen}: {error}"
            raise SandboxError(message) from error

    def put(self, files: str) -> None:
        """These files are in the workspace too, in place of what has their names."""
        try:
            copy(Path(files), self.live, is_over=True)
        except OSError as error:
            message = f"files of {files}: {error}"
            raise SandboxError(message) from error

    def freeze(self) -> State | None:
        """What the workspace holds, out of reach; None if it is lost.

        Asking again, after a death half way, gives the same.
        """
        try:
            if not _is_folder(self.frozen):
                if not _is_folder(self.live):
                    return None
                self._states.mkdir(parents=True, exist_ok=True, mode=0o700)
                if _is_folder(self.place / ROOT):
                    (self.place / ROOT).rename(self.frozen_root)
                self.live.rename(self.frozen)
            for folder in self._parts():
                (unlock if self._stacks else seal)(folder)
            return State(folder=str(self.frozen), reference=self._reference())
        except OSError as error:
            message = f"freezing {self.live}: {error}"
            raise SandboxError(message) from error

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
                copy(Path(state.folder), self.live)
                is_same = content_hash(self.live) == state.reference
        except OSError as error:
            self._clear()
            message = f"copy of {state.folder}: {error}"
            raise SandboxError(message) from error
        if not is_same:
            self._clear()
            message = f"{state.folder}: its contents are not those that were frozen"
            raise SandboxError(message, retryable=False)
        try:
            yield str(self.frozen if self._stacks else self.live), str(self.scratch)
        finally:
            self._clear()

    def tidy(self, *, keeps: bool) -> None:
        """What nobody needs of a closed execution is gone, its state too unless it is kept."""
        self._clear()
        with suppress(OSError):
            remove(self.place)
            for folder in () if keeps else (self.frozen, self.frozen_root, self._home):
                remove(folder)

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
            for entry in _entries(folder):
                one = entry.lstat()
                told = (entry, one.st_ino, one.st_size, one.st_mtime_ns, one.st_ctime_ns)
                found.update(repr(told).encode())
        return found.hexdigest()

    def _clear(self) -> None:
        # What cannot be removed now is found, and named, when the next copy is made.
        with suppress(OSError):
            remove(self.live)
            remove(self.scratch)


def content_hash(folder: Path) -> str:
    """SHA-256 of names, kinds, contents, link targets and who may execute; not of times or owners.

    Sockets, pipes and devices are left out, as they are of a copy; but the one device by which
    an overlay says that something below is gone counts, and so does a folder that hides all below.
    """
    state = hashlib.sha256()

    def add(*parts: bytes) -> None:
        for part in parts:
            state.update(len(part).to_bytes(8, "big") + part)

    for entry in _entries(folder):
        mode = entry.lstat().st_mode
        name = os.fsencode(str(entry.relative_to(folder)))
        if stat.S_ISLNK(mode):
            add(b"link", name, os.fsencode(entry.readlink()))
        elif stat.S_ISDIR(mode):
            add(b"hiding folder" if _hides(entry) else b"folder", name)
        elif stat.S_ISCHR(mode) and entry.lstat().st_rdev == 0:
            add(b"gone", name)
        elif stat.S_ISREG(mode):
            add(b"program" if mode & stat.S_IXUSR else b"file", name, _digest(entry))
    return state.hexdigest()


def copy(source: Path, target: Path, *, is_over: bool = False, is_layer: bool = False) -> None:
    """Everything in one folder also in the other, which exists; files are writable there.

    `is_over`: what has the same name there gives way, and links there are not followed.
    `is_layer`: with what an overlay says of the folders below it.
    """
    for entry in _entries(source):
        mode = entry.lstat().st_mode
        to = target / entry.relative_to(source)
        if is_over and not (stat.S_ISDIR(mode) and _is_folder(to)):
            remove(to)
        if stat.S_ISLNK(mode):
            to.symlink_to(entry.readlink())
        elif stat.S_ISDIR(mode):
            to.mkdir(mode=0o700, exist_ok=is_over)
            if is_layer and _hides(entry):
                os.setxattr(to, OPAQUE, b"y")
        elif is_layer and stat.S_ISCHR(mode) and entry.lstat().st_rdev == 0:
            os.mknod(to, stat.S_IFCHR, os.makedev(0, 0))
        elif stat.S_ISREG(mode):
            shutil.copyfile(entry, to)
            to.chmod(stat.S_IMODE(mode) | stat.S_IRUSR | stat.S_IWUSR)
            os.utime(to, ns=(entry.lstat().st_atime_ns, entry.lstat().st_mtime_ns))


def seal(folder: Path) -> None:
    """Nothing in it can be written, everything can be read."""
    for entry in [folder, *_entries(folder, opening=True)]:
        mode = entry.lstat().st_mode
        if stat.S_ISDIR(mode):
            entry.chmod(0o500)
        elif stat.S_ISREG(mode):
            entry.chmod((stat.S_IMODE(mode) | stat.S_IRUSR) & ~(0o222 | BORROWED))


def unlock(folder: Path) -> None:
    """Everything in it can be read by its owner, who lends nobody his rights; no other change."""
    waiting = [folder]
    while waiting:
        here = waiting.pop()
        _permit(here, stat.S_IRWXU)
        with os.scandir(here) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(Path(entry.path))
                elif entry.is_file(follow_symlinks=False):
                    _permit(Path(entry.path), stat.S_IRUSR)


def remove(folder: Path) -> None:
    """It is gone, whatever its programs did to permissions."""
    if not folder.is_symlink() and not folder.exists():
        return
    if not _is_folder(folder):
        folder.unlink()
        return
    for _ in _entries(folder, opening=True):
        pass
    shutil.rmtree(folder)


def _entries(folder: Path, *, opening: bool = False) -> Iterator[Path]:
    """All that is inside, folders before what they hold, in the order of the names' bytes.

    `opening` lets its owner into every folder first. Links are not followed.
    """
    waiting = [folder]
    while waiting:
        here = waiting.pop()
        if opening:
            here.chmod(0o700)
        inside = sorted(here.iterdir(), key=lambda path: os.fsencode(path.name))
        yield from inside
        waiting += [path for path in reversed(inside) if _is_folder(path)]


def _permit(path: Path, least: int) -> None:
    mode = stat.S_IMODE(path.lstat().st_mode)
    if mode != (wanted := (mode | least) & ~BORROWED):
        path.chmod(wanted)


def _hides(folder: Path) -> bool:
    try:
        return os.getxattr(folder, OPAQUE, follow_symlinks=False) == b"y"
    except OSError:
        return False


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def _digest(path: Path) -> bytes:
    found = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(CHUNK_BYTES):
            found.update(block)
    return found.digest()
