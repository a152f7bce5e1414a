"""What a process is told, as a file that it reads when it starts."""

from pathlib import Path
from typing import Any, TypeVar

import msgspec

from gyre.storage.durable import replace
from gyre.types.errors import ConfigError

T = TypeVar("T")
RUN_FILE = "run.toml"
"""In a run's folder: what all of it was told."""


def write_plan(path: Path, plan: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    replace(path, msgspec.json.encode(plan, enc_hook=_plain))
    return path


def read_plan(path: Path, kind: type[T]) -> T:
    """ConfigError if it is not a plan of this kind."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind, dec_hook=_value)
    except (OSError, msgspec.MsgspecError) as error:
        message = f"{path}: expected a {kind.__name__}: {error}"
        raise ConfigError(message) from error


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
    try:
        key = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        message = f"{path}: expected a file with a key: {error}"
        raise ConfigError(message) from error
    if not key or not key.isascii():
        message = f"{path}: expected a key of ASCII letters, found none"
        raise ConfigError(message)
    return key
