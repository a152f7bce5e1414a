"""How two folders differ: files that came, went or changed, in unified lines and within limits.

Rule 1: what lies there was written by programs that nobody vouches for, so links are not followed,
nothing but plain files is opened, and no file or listing is read beyond a limit.
"""

import difflib
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Change = Literal["added", "removed", "changed"]

MOST_ENTRIES = 20_000
"""Files and folders that are looked at on either side."""
MOST_FILES = 500
"""Files that are told of."""
MOST_BYTES = 256 * 1024
"""A larger file is told by its size, and known to be unchanged by its time."""
MOST_LINES = 4_000
"""Lines of all files together; a longer file is not compared line by line."""
CONTEXT_LINES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A file that is not the same on both sides."""

    path: str
    change: Change
    before_bytes: int | None
    """None where it was not there."""
    after_bytes: int | None
    lines: tuple[str, ...] | None
    """Unified, without the heads; None where it is not text, or too much of it."""
    note: str | None = None
    """Why there are no lines, or what it is if it is no file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Differences:
    """Of two folders, by path."""

    files: tuple[Difference, ...]
    num_left_out: int
    """Files that differ and are not told of."""
    is_cut: bool
    """Whether one of the folders holds more than was looked at."""


@dataclass(frozen=True, slots=True)
class _Entry:
    path: Path
    mode: int
    num_bytes: int
    changed_ns: int


def differences(before: Path | None, after: Path) -> Differences:
    """What became of the first folder in the second; without a first one everything is new."""
    old, old_cut = ({}, False) if before is None else _listed(before)
    new, new_cut = _listed(after)
    found: list[Difference] = []
    room, num_left_out = MOST_LINES, 0
    for path in sorted(old.keys() | new.keys()):
        one, other = old.get(path), new.get(path)
        if one is not None and other is not None and _is_same(one, other):
            continue
        if len(found) == MOST_FILES:
            num_left_out += 1
            continue
        found.append(_difference(path, one, other, room))
        room -= len(found[-1].lines or ())
    return Differences(files=tuple(found), num_left_out=num_left_out, is_cut=old_cut or new_cut)


def _listed(folder: Path) -> tuple[dict[str, _Entry], bool]:
    found: dict[str, _Entry] = {}
    for number, (path, status) in enumerate(_walked(folder)):
        if number == MOST_ENTRIES:
            return found, True
        if stat.S_ISDIR(status.st_mode):
            continue
        name = os.fsencode(path.relative_to(folder)).decode(errors="replace")
        found[name] = _Entry(path, status.st_mode, status.st_size, status.st_mtime_ns)
    return found, False


def _walked(folder: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """What its programs have shut, or laid deeper than a path can say, is not told."""
    waiting = [folder]
    while waiting:
        try:
            inside = sorted(waiting.pop().iterdir())
        except OSError:
            continue
        folders = []
        for one in inside:
            try:
                status = one.lstat()
            except OSError:
                continue
            yield one, status
            if stat.S_ISDIR(status.st_mode):
                folders.append(one)
        waiting += reversed(folders)


def _is_same(one: _Entry, other: _Entry) -> bool:
    if stat.S_IFMT(one.mode) != stat.S_IFMT(other.mode):
        return False
    if stat.S_ISLNK(one.mode):
        return one.path.readlink() == other.path.readlink()
    if not stat.S_ISREG(one.mode):
        return True
    if one.num_bytes != other.num_bytes:
        return False
    if one.num_bytes > MOST_BYTES:
        # Copies keep the times of what they are copies of.
        return one.changed_ns == other.changed_ns
    return _read(one) == _read(other)


def _difference(path: str, one: _Entry | None, other: _Entry | None, room: int) -> Difference:
    change: Change = "changed"
    if one is None:
        change = "added"
    elif other is None:
        change = "removed"
    lines, note = _lines(one, other, room)
    return Difference(
        path=path,
        change=change,
        before_bytes=None if one is None else one.num_bytes,
        after_bytes=None if other is None else other.num_bytes,
        lines=lines,
        note=note,
    )


def _lines(
    one: _Entry | None, other: _Entry | None, room: int
) -> tuple[tuple[str, ...] | None, str | None]:
    for entry in (other, one):
        if entry is not None and (note := _unreadable(entry)) is not None:
            return None, note
    sides = []
    for entry in (one, other):
        text = "" if entry is None else _text(entry)
        if text is None:
            return None, "not text"
        sides.append(text.splitlines())
    if sum(map(len, sides)) > room:
        return None, "more lines than are shown"
    before, after = sides
    compared = difflib.unified_diff(before, after, lineterm="", n=CONTEXT_LINES)
    return tuple(line for at, line in enumerate(compared) if at > 1), None


def _unreadable(entry: _Entry) -> str | None:
    if stat.S_ISLNK(entry.mode):
        to = os.fsencode(entry.path.readlink()).decode(errors="replace")
        return f"a link to {to}"
    if not stat.S_ISREG(entry.mode):
        return "not a plain file"
    return "too large to show" if entry.num_bytes > MOST_BYTES else None


def _read(entry: _Entry) -> bytes | None:
    """Its beginning, or None where it cannot be read; one byte more than fits says that it goes on.

    Opened without following a link that took its place meanwhile.
    """
    try:
        opened = os.open(entry.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    with os.fdopen(opened, "rb") as file:
        return file.read(MOST_BYTES + 1)


def _text(entry: _Entry) -> str | None:
    data = _read(entry)
    if data is None or b"\0" in data:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None
