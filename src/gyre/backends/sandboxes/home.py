"""Files that a program finds in its home when it starts."""

from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from gyre.words.errors import SandboxError


def write_home(home: Path, files: Mapping[str, str]) -> None:
    """They are there, for their owner alone; SandboxError for a path that leads elsewhere."""
    for name, text in files.items():
        place = PurePosixPath(name)
        if place.is_absolute() or not place.parts or ".." in place.parts:
            message = f"home of a sandbox: expected a path inside it, found {name!r}"
            raise SandboxError(message, retryable=False)
        path = home / place
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            path.touch(mode=0o600)
            path.write_text(text, encoding="utf-8")
        except (OSError, ValueError) as error:
            message = f"home of a sandbox: {name}: {error}"
            raise SandboxError(message) from error
