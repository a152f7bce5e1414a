"""A supervisor shows that it lives by a file whose time moves on, wherever its controller is.

Rule 1: the file is touched by a thread, because copies of large workspaces hold up all else.
Rule 2: it is touched no more once the supervisor's loop has stood still for longer than any copy.
"""

import asyncio
import os
import threading
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

BEAT_FILE = "supervisor.beat"
BEAT_S = 5.0
"""How often the file is touched."""
STUCK_S = 1800.0
"""A loop that stands still for so long never goes on."""


class Beating:
    """Touches the file for as long as this lasts; a context."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / BEAT_FILE
        self._turned_at = time.monotonic()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)

    async def turn(self) -> None:
        """The loop turns, for as long as it does."""
        while True:
            self._turned_at = time.monotonic()
            await asyncio.sleep(BEAT_S)

    def beat(self, now: float) -> bool:
        """Touches the file; False of one whose loop is stuck."""
        if now - self._turned_at >= STUCK_S:
            return False
        # A full disk is no reason to be taken for dead; touching needs no room once it is there.
        with suppress(OSError):
            os.close(os.open(self._path, os.O_WRONLY | os.O_CREAT, 0o600))
            os.utime(self._path)
        return True

    def __enter__(self) -> Self:
        self.beat(time.monotonic())
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over.set()
        self._thread.join(BEAT_S)

    def _work(self) -> None:
        while not self._over.wait(BEAT_S):
            self.beat(time.monotonic())


def last_beat(folder: Path) -> int | None:
    """A number that is another after every beat; None of one that never had any."""
    try:
        return (folder / BEAT_FILE).stat().st_mtime_ns
    except OSError:
        return None
