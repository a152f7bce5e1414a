"""Atomic file replacement, JSON spec files, secrets, folder locks, shared file names."""

import fcntl
import os
import struct
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from gyre.types.errors import ConfigError, wrap_errors
from gyre.types.ids import named


def sync(path: Path) -> None:
    """A file's contents, or the names in a folder, are on the disk."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def replace(path: Path, data: bytes, *, is_secret: bool = False) -> None:
    """The file has these contents, durably; a reader sees them or the ones before, never a part.

    Only its owner can read a secret, also where the process's umask lets others read.
    """
    beside = path.with_suffix(".writing")
    beside.unlink(missing_ok=True)
    mode = 0o600 if is_secret else 0o666
    with os.fdopen(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(data)
    sync(beside)
    beside.rename(path)
    sync(path.parent)


LOCK_FILE = "supervisor.lock"


def take(folder: Path, *, whose: str = "supervisor") -> int:
    """A descriptor that holds the lock until it is closed, or the process is gone.

    ConfigError if another process holds it.
    """
    fd = os.open(folder / f"{whose}.lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _whole(fcntl.F_WRLCK))
    except OSError as error:
        os.close(fd)
        raise ConfigError(f"{folder}: has a {whose} already") from error
    return fd


def is_taken(folder: Path) -> bool:
    """Asked without taking it, so that no process that takes it meanwhile is refused."""
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


T = TypeVar("T")
RUN_FILE = "run.toml"
"""In a run's folder: its settings."""
TOKEN_FILE = "admin.token"
PROXY = "proxy"
"""What the first, or only, process of a run's proxy is called."""


def is_proxy(name: str) -> bool:
    """Whether a process of this name is one of the proxy's."""
    return name == PROXY or name.startswith(f"{PROXY}-")


def proxy_address_file(folder: Path, shard: int = 0) -> Path:
    """In a run's folder, says where a shard of its proxy listens."""
    return folder / f"{named(PROXY, shard)}.url"


def write_plan(path: Path, plan: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    replace(path, msgspec.json.encode(plan, enc_hook=_plain))
    return path


def read_plan(path: Path, kind: type[T]) -> T:
    """ConfigError if it is not a plan of this kind."""
    unreadable = (OSError, msgspec.MsgspecError)
    with wrap_errors(ConfigError, f"{path}: expected a {kind.__name__}", unreadable):
        return msgspec.json.decode(path.read_bytes(), type=kind, dec_hook=_value)


def _plain(value: object) -> Any:
    if isinstance(value, Path):
        return str(value)
    raise NotImplementedError


def _value(kind: type, plain: Any) -> Any:
    if issubclass(kind, Path):
        return Path(plain)
    raise NotImplementedError


def read_key(path: Path | None) -> str | None:
    """The key in a file; None without one."""
    if path is None:
        return None
    unreadable = (OSError, UnicodeDecodeError)
    with wrap_errors(ConfigError, f"{path}: expected a file with a key", unreadable):
        key = path.read_text(encoding="utf-8").strip()
    if not key or not key.isascii():
        raise ConfigError(f"{path}: expected a key of ASCII letters, found none")
    return key


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A file to write beside `path`; it replaces `path` at the end, or is gone after an error.

    Its owner alone may read it, as with the logs: it holds what agents saw.
    """
    try:
        fd, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
        os.close(fd)
        part = Path(name)
        try:
            yield part
            sync(part)
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written: {error.strerror}") from error
