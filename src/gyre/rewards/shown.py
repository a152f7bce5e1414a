"""Files of a workspace as a judge sees them: none outside it, and never more than so many bytes."""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import translate
from pathlib import Path, PurePosixPath

from gyre.storage import safe_dir as folders

MOST_LISTED = 2_000
MOST_PATH_BYTES = 4096
"""What lies deeper than a program can name is shown to nobody."""
LEFT_OUT = {".git", "node_modules", "__pycache__"}
"""Folders that nobody judges."""
ANY = "**"
"""In a pattern, any number of folders."""


@dataclass(frozen=True, slots=True)
class WorkspaceExcerpts:
    """A workspace; links are not followed."""

    folder: Path
    most_bytes: int

    def matching(self, patterns: Sequence[str]) -> str:
        """The files that match, each under its name, as far as the bytes go."""
        left = self.most_bytes
        parts: list[str] = []
        for path, size in self._files(patterns):
            if len(parts) == MOST_LISTED:
                break
            if left <= 0:
                parts.append(f"--- {_named(path)}: left out, for want of room")
                continue
            data = self._data(path, 0, left)
            cut = "" if size <= left else f" (the first {left} of {size} bytes)"
            parts.append(f"--- {_named(path)}{cut}\n{data.decode(errors='replace')}")
            left -= size
        return "\n".join(parts) or "(no file)"

    def listed(self) -> str:
        """All files with their sizes."""
        found = self._files(("**/*",))
        lines = [f"{_named(path)} {size}" for path, size in found[:MOST_LISTED]]
        more = f"\n... {len(found) - MOST_LISTED} more" if len(found) > MOST_LISTED else ""
        return ("\n".join(lines) or "(no file)") + more

    def read(self, name: str, start: int) -> str:
        """A part of one file; or what is wrong, for whoever asked."""
        try:
            data = self._data(name, max(0, start), self.most_bytes)
        except (OSError, ValueError):
            return f"no such file: {name}"
        return data.decode(errors="replace")

    def _data(self, name: str, start: int, most_bytes: int) -> bytes:
        """Never the whole, because a file without contents can be of any size."""
        with os.fdopen(folders.opened(self.folder, name), "rb") as file:
            if start > os.fstat(file.fileno()).st_size:
                return b""
            file.seek(start)
            return file.read(most_bytes)

    def _files(self, patterns: Sequence[str]) -> list[tuple[str, int]]:
        """Paths and sizes, by pattern and then by path, each once."""
        wanted = [_Pattern(pattern) for pattern in patterns]
        everything = sorted(self._everything())
        found: dict[str, int] = {}
        for pattern in wanted:
            for parts, size in everything:
                if pattern.matches(parts):
                    found.setdefault("/".join(parts), size)
        return list(found.items())

    def _everything(self) -> list[tuple[tuple[str, ...], int]]:
        found: list[tuple[tuple[str, ...], int]] = []
        here: list[str] = []
        for visit in folders.visits(self.folder):
            del here[len(here) - visit.up :]
            if visit.name is not None:
                here.append(visit.name)
            if len(here) > MOST_PATH_BYTES // 2 or LEFT_OUT & set(here):
                continue
            for entry in visit.entries:
                parts = (*here, entry.name)
                is_short = len(os.fsencode("/".join(parts))) <= MOST_PATH_BYTES
                if entry.is_file and is_short:
                    found.append((parts, entry.status.st_size))
        return found


class _Pattern:
    """Names with `*` and `?` in them, and `**` for any number of folders; ValueError for others."""

    def __init__(self, text: str) -> None:
        place = PurePosixPath(text)
        if place.is_absolute() or not place.parts:
            message = f"expected a pattern of paths inside the workspace, found {text!r}"
            raise ValueError(message)
        if any(ANY in part and part != ANY for part in place.parts):
            message = f"expected {ANY} to stand alone between two slashes, found {text!r}"
            raise ValueError(message)
        self._parts = [None if part == ANY else re.compile(translate(part)) for part in place.parts]

    def matches(self, parts: Sequence[str]) -> bool:
        reached = self._onward({0})
        for name in parts:
            passed = set()
            for place in reached - {len(self._parts)}:
                part = self._parts[place]
                if part is None:
                    passed.add(place)
                elif part.match(name):
                    passed.add(place + 1)
            reached = self._onward(passed)
        return len(self._parts) in reached

    def _onward(self, reached: set[int]) -> set[int]:
        """With what follows any number of folders, because none will do."""
        found = set(reached)
        for place, part in enumerate(self._parts):
            if place in found and part is None:
                found.add(place + 1)
        return found


def _named(path: str) -> str:
    """As it can be sent to anybody."""
    return os.fsencode(path).decode(errors="replace")
