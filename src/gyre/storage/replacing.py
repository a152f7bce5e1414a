"""A file that takes its name only when it is whole."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gyre.storage.durable import sync
from gyre.types.errors import ConfigError


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A file to write beside `path`; it replaces `path` at the end, or is gone after an error.

    Its owner alone may read it, as with the logs: it holds what agents saw.
    """
    try:
        fd, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    except OSError as error:
        message = f"{path}: cannot be written: {error.strerror}"
        raise ConfigError(message) from error
    os.close(fd)
    part = Path(name)
    try:
        yield part
        sync(part)
        part.replace(path)
    except OSError as error:
        message = f"{path}: cannot be written: {error.strerror}"
        raise ConfigError(message) from error
    finally:
        part.unlink(missing_ok=True)
