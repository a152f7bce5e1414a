"""Group commit: one fdatasync of a log covers every record written to it before."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

from gyre.calls import CallLog


class GroupCommit:
    """Makes records durable off the event loop; writers that wait together are served together."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="fdatasync")
        self._waiting: dict[CallLog, list[asyncio.Future[None]]] = {}
        self._busy = False
        self.num_syncs = 0
        self.num_waits = 0

    async def sync(self, log: CallLog) -> None:
        """Returns when everything appended to `log` so far is on the disk; raises OSError."""
        waiter = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(log, []).append(waiter)
        self.num_waits += 1
        self._start()
        await waiter

    def close(self) -> None:
        self._pool.shutdown()

    def _start(self) -> None:
        if self._busy or not self._waiting:
            return
        self._busy = True
        batch, self._waiting = self._waiting, {}
        self.num_syncs += len(batch)
        done = asyncio.get_running_loop().run_in_executor(self._pool, _sync_all, list(batch))
        done.add_done_callback(lambda result: self._finish(batch, result))

    def _finish(
        self,
        batch: dict[CallLog, list[asyncio.Future[None]]],
        result: asyncio.Future[dict[CallLog, OSError]],
    ) -> None:
        self._busy = False
        failed = result.result()
        for log, waiters in batch.items():
            for waiter in waiters:
                if waiter.done():
                    continue
                if log in failed:
                    waiter.set_exception(failed[log])
                else:
                    waiter.set_result(None)
        self._start()


def _sync_all(logs: list[CallLog]) -> dict[CallLog, OSError]:
    failed = {}
    for log in logs:
        try:
            log.sync()
        except OSError as error:
            failed[log] = error
    return failed
