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


def replace(path: Path, data: bytes) -> None:
    """The file has these contents, durably; a reader sees them or the ones before, never a part."""
    beside = path.with_suffix(".writing")
    beside.write_bytes(data)
    sync(beside)
    beside.rename(path)
    sync(path.parent)
