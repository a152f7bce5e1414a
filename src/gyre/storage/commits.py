"""One journal in which the newest records of many call logs become durable together.

A record is in its own log at once, which survives the process. The journal holds a copy of every
record since it was last emptied and is synced for all logs with one call, which survives the
machine: what a log lost is put back from the journal when the run is opened again.
"""

import fcntl
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from struct import Struct

from gyre.storage import call_log as calls
from gyre.storage.frames import HEAD_BYTES, framed, payload_at
from gyre.types.errors import ConfigError, LogDamaged
from gyre.types.shards import named

NAME = "commits"
MAGIC = b"GYRECMIT"
_WHERE = Struct("<HQ")


@dataclass(frozen=True, slots=True, kw_only=True)
class WalEntry:
    """Bytes that were appended to one log."""

    log: str
    """Name of the execution."""
    offset: int
    data: bytes


class WriteAheadLog:
    """The journal of a run folder, or of a shard's part of it, open for one process at a time."""

    def __init__(self, folder: Path, *, shard: int = 0) -> None:
        """Puts back what logs have lost, then starts empty; raises ConfigError when in use."""
        path = folder / named(NAME, shard)
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._fd)
            message = f"{folder}: another proxy serves this run folder"
            raise ConfigError(message) from error
        self.num_restored = restore(folder, shard=shard)
        self._end = 0
        self.empty()

    @property
    def size_bytes(self) -> int:
        return self._end

    def write(self, entries: Sequence[WalEntry]) -> None:
        """The entries are on the disk; raises OSError with the journal as it was."""
        data = b"".join(map(_framed, entries))
        done = 0
        try:
            while done < len(data):
                done += os.pwrite(self._fd, data[done:] if done else data, self._end + done)
            os.fdatasync(self._fd)
        except OSError:
            os.ftruncate(self._fd, self._end)
            raise
        self._end += len(data)

    def empty(self) -> None:
        """Forget all entries; only after every log they were for has been synced."""
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, MAGIC, 0)
        self._end = len(MAGIC)

    def close(self) -> None:
        os.close(self._fd)


def shards(folder: Path) -> list[int]:
    """Those that have a journal there; the first always counts."""
    found = (path.name.removeprefix(f"{NAME}-") for path in folder.glob(f"{NAME}-*"))
    return [0, *sorted(int(one) for one in found if one.isdecimal())]


def entries(folder: Path, *, shard: int = 0) -> Iterator[WalEntry]:
    """What the journal of a run folder holds, up to a torn tail."""
    path = folder / named(NAME, shard)
    data = path.read_bytes() if path.exists() else b""
    if data and not data.startswith(MAGIC) and not MAGIC.startswith(data):
        message = f"{path}: not a commit journal: it does not begin with {MAGIC.decode()}"
        raise LogDamaged(message)
    at = len(MAGIC)
    # Whatever follows a torn one was never acknowledged: a batch is synced before any reply of it.
    while (payload := payload_at(data, at)) is not None and len(payload) >= _WHERE.size:
        length, offset = _WHERE.unpack_from(payload)
        start = _WHERE.size + length
        name = payload[_WHERE.size : start].decode(errors="replace")
        if "/" in name or "\0" in name:
            message = f"{path}: entry at byte {at}: expected the name of an execution"
            raise LogDamaged(message)
        yield WalEntry(log=name, offset=offset, data=payload[start:])
        at += HEAD_BYTES + len(payload)


def restore(folder: Path, *, shard: int = 0) -> int:
    """Appends to logs what they lost with the machine; how many entries that were."""
    sound: dict[str, int] = {}
    restored = 0
    for entry in entries(folder, shard=shard):
        path = calls.path_of(folder, entry.log)
        if not path.exists():
            continue
        if entry.log not in sound:
            sound[entry.log] = calls.read(path).sound_bytes
        end = sound[entry.log]
        if entry.offset + len(entry.data) <= end:
            continue
        if entry.offset != end:
            message = f"{path}: ends at byte {end}, and the journal goes on at {entry.offset}"
            raise LogDamaged(message)
        log = calls.CallLog(path, sound_bytes=end)
        log.append_raw(entry.data)
        log.sync()
        log.close()
        sound[entry.log] = end + len(entry.data)
        restored += 1
    return restored


def _framed(entry: WalEntry) -> bytes:
    name = entry.log.encode()
    return framed(_WHERE.pack(len(name), entry.offset) + name + entry.data)
