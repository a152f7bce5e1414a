"""Files of a workspace as a judge sees them: none outside it, and never more than so many bytes."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

MOST_LISTED = 2_000
LEFT_OUT = {".git", "node_modules", "__pycache__"}
"""Folders that nobody judges."""


@dataclass(frozen=True, slots=True)
class Shown:
    """A workspace; links are not followed."""

    folder: Path
    most_bytes: int

    def matching(self, patterns: Sequence[str]) -> str:
        """The files that match, each under its name, as far as the bytes go."""
        left, parts = self.most_bytes, []
        for path in self._files(patterns):
            name = path.relative_to(self.folder)
            if left <= 0:
                parts.append(f"--- {name}: left out, for want of room")
                continue
            size = path.stat().st_size
            # Never the whole, because a file without contents can be of any size.
            with path.open("rb") as file:
                data = file.read(left)
            cut = "" if size <= left else f" (the first {left} of {size} bytes)"
            parts.append(f"--- {name}{cut}\n{data.decode(errors='replace')}")
            left -= size
        return "\n".join(parts[:MOST_LISTED]) or "(no file)"

    def listed(self) -> str:
        """All files with their sizes."""
        lines = [
            f"{path.relative_to(self.folder)} {path.stat().st_size}"
            for path in self._files(("**/*",))
        ]
        more = f"\n... {len(lines) - MOST_LISTED} more" if len(lines) > MOST_LISTED else ""
        return ("\n".join(lines[:MOST_LISTED]) or "(no file)") + more

    def read(self, name: str, start: int) -> str:
        """A part of one file; or what is wrong, for whoever asked."""
        path = self.folder / name
        if not self._is_inside(path) or not path.is_file():
            return f"no such file: {name}"
        with path.open("rb") as file:
            file.seek(max(0, start))
            data = file.read(self.most_bytes)
        return data.decode(errors="replace")

    def _files(self, patterns: Sequence[str]) -> Iterator[Path]:
        seen: set[Path] = set()
        for pattern in patterns:
            for path in sorted(self.folder.glob(pattern)):
                parts = path.relative_to(self.folder).parts
                if path in seen or LEFT_OUT & set(parts):
                    continue
                if path.is_file() and self._is_inside(path):
                    seen.add(path)
                    yield path

    def _is_inside(self, path: Path) -> bool:
        """Neither by dots nor by a link does it lead out, nor to anything but itself."""
        whole = self.folder.resolve()
        return path.resolve() == whole / path.relative_to(self.folder)
