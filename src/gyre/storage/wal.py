"""The write-ahead log that makes many call logs durable with one fdatasync.

A record is in its own log at once, which survives the process. The journal holds a copy of every
record since it was last emptied and is synced for all logs with one call, which survives the
machine: what a log lost is put back from the journal when the run is opened again.
"""

import asyncio
import errno
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from struct import Struct

from gyre.storage import call_log, files
from gyre.storage.call_log import CallLog
from gyre.storage.framed_file import HEAD_BYTES, FramedFile, framed, locked, payload_at
from gyre.types.errors import ConfigError, LogDamaged
from gyre.types.ids import named

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
    """Makes the call logs of a run folder or shard durable; open for one process at a time."""

    def __init__(self, folder: Path, *, shard: int = 0) -> None:
        """Puts back what logs have lost, then starts empty; raises ConfigError when in use."""
        path = folder / named(NAME, shard)
        lock = locked(path, create=True)
        if lock is None:
            raise ConfigError(f"{folder}: another proxy serves this run folder")
        self._lock = lock
        try:
            self.num_restored = restore(folder, shard=shard)
            self._file = FramedFile(path, magic=MAGIC)
        except (OSError, LogDamaged):
            os.close(lock)
            raise

    @property
    def size_bytes(self) -> int:
        return self._file.size_bytes

    def write(self, entries: Sequence[WalEntry]) -> None:
        """The entries are on the disk; raises OSError with the journal as it was."""
        begun = self._file.size_bytes
        self._file.append_raw(b"".join(map(_framed, entries)))
        try:
            self._file.sync()
        except OSError:
            self._file.cut(begun)
            raise

    def empty(self) -> None:
        """Forget all entries; only after every log they were for has been synced."""
        self._file.cut(len(MAGIC))

    def close(self) -> None:
        # What was acknowledged is on the disk already.
        with suppress(OSError):
            self._file.close()
        os.close(self._lock)


def shards(folder: Path) -> list[int]:
    """Those that have a journal there; the first always counts."""
    found = (path.name.removeprefix(f"{NAME}-") for path in folder.glob(f"{NAME}-*"))
    return [0, *sorted(int(name) for name in found if name.isdecimal())]


def entries(folder: Path, *, shard: int = 0) -> Iterator[WalEntry]:
    """What the journal of a run folder holds, up to a torn tail."""
    path = folder / named(NAME, shard)
    data = path.read_bytes() if path.exists() else b""
    if data and not data.startswith(MAGIC) and not MAGIC.startswith(data):
        raise LogDamaged(f"{path}: not a commit journal: it does not begin with {MAGIC.decode()}")
    at = len(MAGIC)
    # What follows a torn one was never acknowledged: a batch is synced before any reply of it.
    while (payload := payload_at(data, at)) is not None and len(payload) >= _WHERE.size:
        length, offset = _WHERE.unpack_from(payload)
        start = _WHERE.size + length
        name = payload[_WHERE.size : start].decode(errors="replace")
        if "/" in name or "\0" in name:
            raise LogDamaged(f"{path}: entry at byte {at}: expected the name of an execution")
        yield WalEntry(log=name, offset=offset, data=payload[start:])
        at += HEAD_BYTES + len(payload)


def restore(folder: Path, *, shard: int = 0) -> int:
    """Appends to logs what they lost with the machine; how many entries that were.

    Logs that lost nothing are on the disk as well, where a killed process may not have put them.
    """
    sound: dict[str, int] = {}
    restored = 0
    for entry in entries(folder, shard=shard):
        path = call_log.path_of(folder, entry.log)
        if not path.exists():
            continue
        if entry.log not in sound:
            sound[entry.log] = call_log.read(path).sound_bytes
        end = sound[entry.log]
        if entry.offset + len(entry.data) <= end:
            continue
        if entry.offset != end:
            message = f"{path}: ends at byte {end}, and the journal goes on at {entry.offset}"
            raise LogDamaged(message)
        log = call_log.CallLog(path, sound_bytes=end)
        log.append_raw(entry.data)
        log.close()
        sound[entry.log] = end + len(entry.data)
        restored += 1
    for name in sound:
        files.sync(call_log.path_of(folder, name))
    return restored


def _framed(entry: WalEntry) -> bytes:
    name = entry.log.encode()
    return framed(_WHERE.pack(len(name), entry.offset) + name + entry.data)


MOST_JOURNAL_BYTES = 64 * 2**20
"""Size at which the logs themselves are synced and the journal is emptied."""
WITHIN_S = 300.0
"""How long a disk may take; a call that waited longer is refused, and may be tried again."""


class WalWriter:
    """A thread that writes records of many call logs to the disk, all that gathered in one sync."""

    def __init__(
        self,
        journal: WriteAheadLog,
        *,
        most_journal_bytes: int = MOST_JOURNAL_BYTES,
        within_s: float = WITHIN_S,
    ) -> None:
        self._journal = journal
        self._within_s = within_s
        self._most_journal_bytes = most_journal_bytes
        self._noted: list[tuple[CallLog, WalEntry]] = []
        self._waiting: list[asyncio.Future[None]] = []
        self._under_way: list[asyncio.Future[None]] = []
        self._busy = False
        self._touched: set[CallLog] = set()
        self._batches: SimpleQueue[list[tuple[CallLog, WalEntry]] | None] = SimpleQueue()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._work, name="commit", daemon=True)
        self.num_syncs = 0
        self.num_waits = 0
        self._begin()

    def note(self, log: CallLog, execution: str, offset: int, data: bytes) -> None:
        """Bytes that were appended to a log; they go to the disk with the next sync."""
        self._noted.append((log, WalEntry(log=execution, offset=offset, data=data)))

    async def sync(self) -> None:
        """Returns when everything noted so far is on the disk; raises OSError."""
        self._loop = asyncio.get_running_loop()
        waiter = self._loop.create_future()
        self._waiting.append(waiter)
        self.num_waits += 1
        self._start()
        try:
            async with asyncio.timeout(self._within_s):
                await waiter
        except TimeoutError as error:
            message = f"the disk took longer than {self._within_s:g} s"
            raise OSError(errno.ETIMEDOUT, message) from error

    def close(self) -> None:
        """Ends the thread; logs are synced by their owner."""
        self._end()
        self._journal.close()

    # The thread, in whose place the simulation of faults puts made-up time.

    def _begin(self) -> None:
        self._thread.start()

    def _hand_over(self, batch: list[tuple[CallLog, WalEntry]]) -> None:
        self._batches.put(batch)

    def _end(self) -> None:
        self._batches.put(None)
        self._thread.join()

    def _start(self) -> None:
        if self._busy or not self._waiting:
            return
        self._busy = True
        batch, self._noted = self._noted, []
        self._under_way, self._waiting = self._waiting, []
        self._hand_over(batch)

    def _work(self) -> None:
        while (batch := self._batches.get()) is not None:
            error = self._commit(batch)
            # The loop may have ended meanwhile, with all who waited in it.
            with suppress(RuntimeError):
                if self._loop is not None:
                    self._loop.call_soon_threadsafe(self._finish, batch, error)

    def _commit(self, batch: list[tuple[CallLog, WalEntry]]) -> OSError | None:
        try:
            self._journal.write([entry for _, entry in batch])
            self.num_syncs += 1
            self._touched.update(log for log, _ in batch)
            if self._journal.size_bytes > self._most_journal_bytes:
                for log in self._touched:
                    log.sync()
                self.num_syncs += len(self._touched)
                self._touched.clear()
                self._journal.empty()
        except OSError as error:
            return error
        except (ValueError, RuntimeError, MemoryError) as error:
            # Without this thread every call would wait in vain.
            return OSError(errno.EIO, f"{type(error).__name__}: {error}")
        return None

    def _finish(self, batch: list[tuple[CallLog, WalEntry]], error: OSError | None) -> None:
        self._busy = False
        if error is not None:
            # Kept for the next batch, because the journal must have no gaps.
            self._noted = batch + self._noted
        for waiter in self._under_way:
            if waiter.done():
                continue
            if error is None:
                waiter.set_result(None)
            else:
                waiter.set_exception(error)
        self._under_way = []
        self._start()
