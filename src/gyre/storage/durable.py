"""Files that are whole or absent, also after the machine has died."""

import os
from pathlib import Path


def sync(path: Path) -> None:
    """A file's contents, or the names in a folder, are on the disk."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def replace(path: Path, data: bytes, *, is_secret: bool = False) -> None:
    """The file has these contents, durably; a reader sees them or the ones before, never a part.

    A secret is for its owner alone, whatever the process lets others read.
    """
    beside = path.with_suffix(".writing")
    beside.unlink(missing_ok=True)
    mode = 0o600 if is_secret else 0o666
    with os.fdopen(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(data)
    sync(beside)
    beside.rename(path)
    sync(path.parent)
