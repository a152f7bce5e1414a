"""Files that a program finds in its home when it starts."""

from collections.abc import Mapping
from pathlib import Path

from gyre.storage import safe_dir as folders
from gyre.types.errors import SandboxError


def write_home(home: Path, files: Mapping[str, str]) -> None:
    """They are there, for their owner alone; SandboxError for a path that leads elsewhere.

    A program before may have left links in their way, which are not followed.
    """
    for name, text in files.items():
        try:
            folders.write(home, name, text.encode())
        except ValueError as error:
            message = f"home of a sandbox: {error}"
            raise SandboxError(message, retryable=False) from error
        except OSError as error:
            message = f"home of a sandbox: {name}: {error}"
            raise SandboxError(message) from error
