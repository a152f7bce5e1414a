"""An execution's folder on the host: a copy of the task's files, frozen when the harness ends.

Rule 1: the frozen state is never written; every assessment works on a copy of its own.
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


class Workspace:
    """The folders of one execution in which programs work, and what remains of them."""

    def __init__(self, folder: Path) -> None:
        self.live = folder / "workspace"
        self.frozen = folder / "frozen"
        self.scratch = folder / "scratch"

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

    def freeze(self) -> State | None:
        """What the workspace holds, out of reach and read-only; None if it is lost.

        Asking again, after a death half way, gives the same.
        """
        try:
            if not _is_folder(self.frozen):
                if not _is_folder(self.live):
                    return None
                self.live.rename(self.frozen)
            seal(self.frozen)
            return State(folder=str(self.frozen), reference=content_hash(self.frozen))
        except OSError as error:
            message = f"freezing {self.live}: {error}"
            raise SandboxError(message) from error

    @contextmanager
    def fresh(self, state: State) -> Iterator[tuple[str, str]]:
        """A copy of the state that may be changed, and an empty folder beside it."""
        try:
            self._clear()
            self.live.mkdir()
            self.scratch.mkdir()
            copy(Path(state.folder), self.live)
            found = content_hash(self.live)
        except OSError as error:
            self._clear()
            message = f"copy of {state.folder}: {error}"
            raise SandboxError(message) from error
        if found != state.reference:
            self._clear()
            message = f"{state.folder}: its contents are not those that were frozen"
            raise SandboxError(message, retryable=False)
        try:
            yield str(self.live), str(self.scratch)
        finally:
            self._clear()

    def _clear(self) -> None:
        # What cannot be removed now is found, and named, when the next copy is made.
        with suppress(OSError):
            remove(self.live)
            remove(self.scratch)


def content_hash(folder: Path) -> str:
    """SHA-256 of names, kinds, contents, link targets and who may execute; not of times or owners.

    Sockets, pipes and devices are left out, as they are of a copy.
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
            add(b"folder", name)
        elif stat.S_ISREG(mode):
            add(b"program" if mode & stat.S_IXUSR else b"file", name, _digest(entry))
    return state.hexdigest()


def copy(source: Path, target: Path) -> None:
    """Everything in one folder also in the other, which exists; files are writable there."""
    for entry in _entries(source):
        mode = entry.lstat().st_mode
        to = target / entry.relative_to(source)
        if stat.S_ISLNK(mode):
            to.symlink_to(entry.readlink())
        elif stat.S_ISDIR(mode):
            to.mkdir(mode=0o700)
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
            entry.chmod((stat.S_IMODE(mode) | stat.S_IRUSR) & ~0o222)


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


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def _digest(path: Path) -> bytes:
    found = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(CHUNK_BYTES):
            found.update(block)
    return found.digest()
