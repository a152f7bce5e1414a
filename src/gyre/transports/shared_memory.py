"""Files in a folder that processes share: in memory on one machine, or on a shared file system."""

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from gyre.transports.tensor_transfer import check_read, new_key, outdated, refused
from gyre.types.errors import TransferError
from gyre.types.protocols import Exposure

KIND = "shared"
SUFFIX = ".exposed"


class SharedTransport:
    """A transport by shared memory: a file for each exposure, unchanged once it has its name."""

    def __init__(self, folder: Path, *, owner: str) -> None:
        """Removes what an earlier process of that name left there."""
        self._folder = folder
        self._owner = owner
        self._held: set[str] = set()
        for path in folder.glob(f"{owner}.*{SUFFIX}*"):
            path.unlink(missing_ok=True)

    def expose(self, parts: Sequence[memoryview], *, version: int) -> Exposure:
        key = new_key()
        name = f"{self._owner}.{key}{SUFFIX}"
        path, part = self._folder / name, self._folder / f"{name}.part"
        try:
            with part.open("wb", buffering=0) as file:
                for one in parts:
                    _write(file.fileno(), one)
            part.rename(path)
        except OSError as error:
            part.unlink(missing_ok=True)
            raise TransferError(f"{path}: cannot be written: {error}") from error
        self._held.add(name)
        num_bytes = sum(one.nbytes for one in parts)
        return Exposure(kind=KIND, peer=name, key=key, version=version, num_bytes=num_bytes)

    def read(self, given: Exposure, at: int, into: memoryview) -> None:
        check_read(given, at, into.nbytes, kind=KIND)
        is_name = given.peer == Path(given.peer).name and "\0" not in given.peer
        if not is_name or given.key not in given.peer:
            raise refused(given, "expected the name of a file that has the key in it")
        try:
            with (self._folder / given.peer).open("rb", buffering=0) as file:
                found = os.fstat(file.fileno()).st_size
                if found != given.num_bytes:
                    raise refused(given, f"expected {given.num_bytes} bytes, found {found}")
                _read(file.fileno(), at, into)
        except FileNotFoundError as error:
            raise outdated(given) from error
        except OSError as error:
            raise TransferError(f"{given.peer}: cannot be read: {error}") from error

    def withdraw(self, given: Exposure) -> None:
        if given.peer in self._held:
            self._held.discard(given.peer)
            with suppress(OSError):
                (self._folder / given.peer).unlink()

    def close(self) -> None:
        held, self._held = self._held, set()
        for name in held:
            with suppress(OSError):
                (self._folder / name).unlink()


def _write(file: int, data: memoryview) -> None:
    at = 0
    while at < data.nbytes:
        at += os.write(file, data[at:])


def _read(file: int, at: int, into: memoryview) -> None:
    done = 0
    while done < into.nbytes:
        count = os.preadv(file, [into[done:]], at + done)
        if count == 0:
            raise OSError("its end came too soon")
        done += count
