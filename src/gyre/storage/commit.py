"""Group commit: calls that end together become durable with one sync."""

import asyncio
import errno
import threading
from contextlib import suppress
from queue import SimpleQueue

from gyre.storage.call_log import CallLog
from gyre.storage.commits import WalEntry, WriteAheadLog

MOST_JOURNAL_BYTES = 64 * 2**20
"""Size at which the logs themselves are synced and the journal is emptied."""
WITHIN_S = 300.0
"""How long a disk may take; a call that waited longer is refused, and may be tried again."""


class WalWriter:
    """Carries records to the disk on a thread of its own, as many as have gathered at a time."""

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
