"""Folders that other programs have filled: no link in them is followed, no depth is too deep.

Rule 1: what lies in such a folder is reached from descriptor to descriptor, never by a whole path.
Rule 2: a folder is left by its own parent, so that a walk holds one descriptor at any depth.
"""

import hashlib
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

BORROWED = stat.S_ISUID | stat.S_ISGID
"""Rights that a file lends to the user who runs it."""
MOST_LABEL_BYTES = 4096
"""Of a path that stands for itself, as long as any that programs can name."""
MOST_STEPS_BACK = 10**5
"""Of one walk, to get back to where folders were moved away; then it gets back to the first only,
so that it ends however many are moved."""
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_OWN = _FOLDER | os.O_NOFOLLOW


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderEntry:
    """A file, folder or link in a folder, with its status."""

    name: str
    status: os.stat_result
    """Of itself, where it is a link."""

    @property
    def is_folder(self) -> bool:
        return stat.S_ISDIR(self.status.st_mode)

    @property
    def is_file(self) -> bool:
        return stat.S_ISREG(self.status.st_mode)

    @property
    def is_link(self) -> bool:
        return stat.S_ISLNK(self.status.st_mode)


@dataclass(frozen=True, slots=True, kw_only=True)
class Visit:
    """One folder of a walk."""

    at: int
    """Its descriptor, until the next one is asked for."""
    up: int
    """So many folders were left since the visit before."""
    name: str | None
    """In the folder that this led to; None for the first."""
    label: bytes
    """Its path from the first, or what stands for one that is too long."""
    entries: list[FolderEntry]
    """In the order of the names' bytes."""

    def label_of(self, entry: FolderEntry) -> bytes:
        return _label(self.label, entry.name)


def visits(
    folder: Path,
    *,
    opens: bool = False,
    forgives: bool = False,
    left: Callable[[int, str], None] | None = None,
) -> Iterator[Visit]:
    """The folder and all below it, each before those it holds.

    `opens`: its owner may do everything in each. `forgives`: programs are at work there, and what
    they take away or shut meanwhile is passed over, and nothing beside it. `left` is told of each
    folder when it was left, with the descriptor of the one that holds it.
    """
    if opens:
        permit(folder)
    at = os.open(folder, _FOLDER)
    listed = _forgiving if forgives else _entries
    steps = MOST_STEPS_BACK
    try:
        entries = listed(at)
        yield Visit(at=at, up=0, name=None, label=b"", entries=entries)
        way = [_Stage("", b"", _identity(at), _folders(entries))]
        up = 0
        while True:
            stage = way[-1]
            if (found := _next(at, stage.waiting, opens=opens, forgives=forgives)) is not None:
                name, below = found
                os.close(at)
                at = below
                label, entries = _label(stage.label, name), listed(at)
                yield Visit(at=at, up=up, name=name, label=label, entries=entries)
                way.append(_Stage(name, label, _identity(at), _folders(entries)))
                up = 0
                continue
            way.pop()
            up += 1
            if not way:
                return
            if (above := _above(at, way[-1].here)) is not None:
                os.close(at)
                at = above
                if left is not None:
                    left(at, stage.name)
                continue
            if not forgives:
                raise OSError(f"{folder}: a folder was moved or shut while it was read")
            again, depth = _found_again(folder, way[: steps + 1])
            os.close(at)
            at = again
            steps -= depth
            up += len(way) - 1 - depth
            del way[depth + 1 :]
    finally:
        os.close(at)


def entered(at: int, name: str) -> int:
    """A folder in another, which is not a link."""
    return os.open(name, _OWN, dir_fd=at)


def climbed(at: int, levels: int = 1) -> int:
    """A descriptor of the folder so many levels above."""
    here = os.dup(at)
    for _ in range(levels):
        try:
            above = os.open("..", _FOLDER, dir_fd=here)
        finally:
            os.close(here)
        here = above
    return here


def opened(folder: Path, name: str) -> int:
    """A descriptor to read a file of a folder by; OSError if links or dots lead to it.

    Neither is anything else opened than a file.
    """
    *above, last = _parts(name)
    at = os.open(folder, _FOLDER)
    try:
        for part in above:
            below = entered(at, part)
            os.close(at)
            at = below
        file = os.open(last, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=at)
    finally:
        os.close(at)
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise OSError(f"{name}: expected a file")
    return file


def write(folder: Path, name: str, data: bytes) -> None:
    """A file for its owner alone, in folders that are there from now; links in its way are gone.

    ValueError for a name that leads out of the folder.
    """
    *above, last = _parts(name)
    at = os.open(folder, _FOLDER)
    try:
        for part in above:
            below = _made(at, part)
            os.close(at)
            at = below
        with suppress(FileNotFoundError):
            os.unlink(last, dir_fd=at)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(last, flags, 0o600, dir_fd=at), "wb") as file:
            file.write(data)
    finally:
        os.close(at)


def remove(path: Path) -> None:
    """Removes it, also where programs took permissions away or made folders without end."""
    try:
        status = path.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISDIR(status.st_mode):
        path.unlink()
        return
    for visit in visits(path, opens=True, left=lambda at, name: os.rmdir(name, dir_fd=at)):
        for entry in visit.entries:
            if not entry.is_folder:
                os.unlink(entry.name, dir_fd=visit.at)
    path.rmdir()


def permit(path: Path | str, least: int = stat.S_IRWXU, *, at: int | None = None) -> None:
    """What is no link gives its owner at least these rights, and lends no user another's."""
    mode = stat.S_IMODE(os.stat(path, dir_fd=at, follow_symlinks=False).st_mode)
    if mode != (wanted := (mode | least) & ~BORROWED):
        os.chmod(path, wanted, dir_fd=at)


@dataclass(frozen=True, slots=True)
class _Stage:
    """A folder that a walk is in, or below."""

    name: str
    label: bytes
    here: tuple[int, int]
    waiting: list[str]
    """Folders in it that were not entered yet, the next one last."""


def _above(at: int, expected: tuple[int, int]) -> int | None:
    """A descriptor of the folder that a walk came from; None if there is no way back to it."""
    try:
        above = climbed(at)
    except OSError:
        return None
    if _identity(above) == expected:
        return above
    os.close(above)
    return None


def _found_again(folder: Path, way: list[_Stage]) -> tuple[int, int]:
    """A descriptor of the innermost folder of a walk that is still in its place, and its depth."""
    at = os.open(folder, _FOLDER)
    for depth, stage in enumerate(way[1:]):
        try:
            below = entered(at, stage.name)
        except OSError:
            return at, depth
        if _identity(below) != stage.here:
            os.close(below)
            return at, depth
        os.close(at)
        at = below
    return at, len(way) - 1


def _next(at: int, waiting: list[str], *, opens: bool, forgives: bool) -> tuple[str, int] | None:
    """The name and a descriptor of the next folder that can be entered; None if there is none."""
    while waiting:
        name = waiting.pop()
        try:
            if opens:
                permit(name, at=at)
            return name, entered(at, name)
        except OSError:
            if not forgives:
                raise
    return None


def _made(at: int, name: str) -> int:
    """A folder in another; what is none and has its name gives way."""
    try:
        return entered(at, name)
    except NotADirectoryError:
        os.unlink(name, dir_fd=at)
    except FileNotFoundError:
        pass
    os.mkdir(name, 0o700, dir_fd=at)
    return entered(at, name)


def _entries(at: int) -> list[FolderEntry]:
    found = []
    with os.scandir(at) as listed:
        for item in listed:
            # What is gone by now was never there.
            with suppress(FileNotFoundError):
                found.append(FolderEntry(name=item.name, status=item.stat(follow_symlinks=False)))
    return sorted(found, key=lambda entry: os.fsencode(entry.name))


def _forgiving(at: int) -> list[FolderEntry]:
    """None of them if its owner may not look at them himself."""
    try:
        return _entries(at)
    except OSError:
        return []


def _folders(entries: list[FolderEntry]) -> list[str]:
    return [entry.name for entry in reversed(entries) if entry.is_folder]


def _identity(at: int) -> tuple[int, int]:
    status = os.fstat(at)
    return status.st_dev, status.st_ino


def _label(above: bytes, name: str) -> bytes:
    whole = above + b"/" + os.fsencode(name) if above else os.fsencode(name)
    if len(whole) <= MOST_LABEL_BYTES and not above.startswith(b"\0"):
        return whole
    # No path begins with this.
    return b"\0" + hashlib.sha256(whole).digest()


def _parts(name: str) -> tuple[str, ...]:
    place = PurePosixPath(name)
    if place.is_absolute() or not place.parts or ".." in place.parts or "\0" in name:
        raise ValueError(f"expected a path inside it, found {name!r}")
    return place.parts
