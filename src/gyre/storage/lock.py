"""A lock on a folder that ends with its process, and that others may ask about."""

import fcntl
import os
import struct
from pathlib import Path

from gyre.types.errors import ConfigError

LOCK_FILE = "supervisor.lock"


def take(folder: Path, *, whose: str = "supervisor") -> int:
    """A descriptor that holds the lock until it is closed, or the process is gone.

    ConfigError if somebody else holds it.
    """
    fd = os.open(folder / f"{whose}.lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _whole(fcntl.F_WRLCK))
    except OSError as error:
        os.close(fd)
        message = f"{folder}: has a {whose} already"
        raise ConfigError(message) from error
    return fd


def is_taken(folder: Path) -> bool:
    """Asked without taking it, so that asking gets in nobody's way."""
    try:
        fd = os.open(folder / LOCK_FILE, os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        answer = fcntl.fcntl(fd, fcntl.F_OFD_GETLK, _whole(fcntl.F_WRLCK))
    finally:
        os.close(fd)
    return bool(struct.unpack_from("h", answer)[0] != fcntl.F_UNLCK)


def _whole(kind: int) -> bytes:
    """The kernel's `struct flock` for the whole file."""
    return struct.pack("hhqqi4x", kind, os.SEEK_SET, 0, 0, 0)
