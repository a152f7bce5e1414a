"""The supervisor's heartbeat: a file whose time moves on while it lives.

Rule 1: the file is touched by a thread, because copies of large workspaces hold up all else.
Rule 2: it is touched no more once the supervisor's loop has stood still for longer than any copy.
Rule 3: it says what is spent of the overall budget, because a supervisor that goes on after days
does not charge them; one that dies is charged up to its next beat, so that an execution whose
supervisor is killed again and again does not go on forever (SPEC 6.1).
"""

import asyncio
import math
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Self

BEAT_FILE = "supervisor.beat"
BEAT_S = 5.0
"""How often the file is touched."""
STUCK_S = 1800.0
"""A loop that stands still for so long never goes on."""


class Heartbeat:
    """A context that touches the heartbeat file, from a thread, until it is left."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / BEAT_FILE
        self._turned_at = time.monotonic()
        self._spent: Callable[[], float] | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)

    async def turn(self) -> None:
        """The loop turns, for as long as it does."""
        while True:
            self._turned_at = time.monotonic()
            await asyncio.sleep(BEAT_S)

    def charge(self, spent: Callable[[], float]) -> None:
        """From now on the file says so; before, it says what the last supervisor left there."""
        self._spent = spent
        self.beat(time.monotonic())

    def beat(self, now: float) -> bool:
        """Touches the file; False of one whose loop is stuck."""
        if now - self._turned_at >= STUCK_S:
            return False
        self._write(BEAT_S)
        return True

    def __enter__(self) -> Self:
        self.beat(time.monotonic())
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()
        self._write(0.0)

    def _work(self) -> None:
        while not self._over.wait(BEAT_S):
            self.beat(time.monotonic())

    def _write(self, until_next_s: float) -> None:
        # A full disk is no reason to be taken for dead; once it is there it needs no more space,
        # because what it says is always of the same length.
        with suppress(OSError):
            file = os.open(self._path, os.O_WRONLY | os.O_CREAT, 0o600)
            try:
                if self._spent is not None:
                    os.pwrite(file, b"%20.3f\n" % (self._spent() + until_next_s), 0)
            finally:
                os.close(file)
            os.utime(self._path)


def last_heartbeat(folder: Path) -> int | None:
    """A number that is another after every beat; None of one that never had any."""
    try:
        return (folder / BEAT_FILE).stat().st_mtime_ns
    except OSError:
        return None


def last_spent_s(folder: Path) -> float | None:
    """Of the overall budget, by all supervisors that there were; None where none has said it."""
    try:
        found = float((folder / BEAT_FILE).read_text())
    except (OSError, ValueError):
        return None
    return found if math.isfinite(found) and found >= 0 else None
