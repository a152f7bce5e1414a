"""A file for each loan, which its readers lock: whoever lends knows when nobody reads any more.

Rule 1: a reader whose lock was granted while the file had its name is waited for, however the loan
ends; a process that is killed holds no lock.
"""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gyre.types.errors import ExposureGone, TransferError

LOOKS_S = 0.002
"""How often a lender looks whether its readers are through."""


class ReaderLocks:
    """Those of one loan."""

    def __init__(self, folder: Path, key: str) -> None:
        self._path = _path(folder, key)
        try:
            self._file: int | None = os.open(self._path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
        except OSError as error:
            raise TransferError(f"{folder}: no room for a loan: {error}") from error

    def refuse(self) -> None:
        """Whoever comes from now on is Outdated; a second time does nothing."""
        self._path.unlink(missing_ok=True)

    def are_gone(self, within_s: float) -> bool:
        """Whether nobody reads within that time; to be asked after `refuse`, until it is true."""
        until_s = time.monotonic() + within_s
        while self._file is not None:
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= until_s:
                    return False
                time.sleep(LOOKS_S)
            else:
                os.close(self._file)
                self._file = None
        return True


@contextmanager
def reading(folder: Path, key: str) -> Iterator[None]:
    """A context in which the lender waits for this reader; Outdated where the loan has ended."""
    ended = f"memory lent under {key[:8]} is not lent any more"
    try:
        file = os.open(_path(folder, key), os.O_RDWR)
    except FileNotFoundError as error:
        raise ExposureGone(ended) from error
    except OSError as error:
        raise TransferError(f"{folder}: cannot read a loan: {error}") from error
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ExposureGone(ended) from error
        if not os.fstat(file).st_nlink:
            raise ExposureGone(ended)
        yield
    finally:
        os.close(file)


def _path(folder: Path, key: str) -> Path:
    if not (key.isascii() and key.isalnum()):
        raise TransferError(f"expected hex digits, found {key[:40]!r}", retryable=False)
    return folder / f"{key}.lent"
