"""Files that are whole or absent, also after the machine has died."""

import os
from pathlib import Path


def replace(path: Path, data: bytes) -> None:
    """The file has these contents, durably; a reader sees them or the ones before, never a part."""
    beside = path.with_suffix(".writing")
    with beside.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    beside.rename(path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """A new name in a folder survives the machine only when the folder is synced."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
