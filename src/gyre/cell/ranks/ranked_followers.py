"""The other ranks of a cell as its driver sees them: processes that answer, or have ended."""

import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from threading import Lock, Thread

import msgspec

from gyre.cell.protocol import made
from gyre.cell.ranks.protocol import READY, RankCommand, RankReply, RankRequest
from gyre.types.errors import CellError, CellGone

END_S = 5.0
"""How long a rank may take to end after its driver has nothing more to say."""


class RankProcess:
    """One rank in a process of its own, which ends with this one however it ends."""

    def __init__(
        self,
        plan: Path,
        rank: int,
        store: Path,
        *,
        on_end: Callable[[str], None],
        through: Sequence[str] = (),
    ) -> None:
        """`on_end` is called in another thread, with what happened, unless it was told to end.

        `through` is a program that has it started on another node, and stands for it here.
        """
        self._name = f"rank {rank}"
        self._on_end = on_end
        self._lock = Lock()
        self._number = READY
        self._is_over = False
        self.ready: Future[RankReply] = Future()
        self._waiting: dict[int, Future[RankReply]] = {READY: self.ready}
        self._process = subprocess.Popen(
            [
                sys.executable,
                *through,
                "-m",
                "gyre.cell.ranks.main",
                str(plan),
                str(rank),
                str(store),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        Thread(target=self._listen, name=self._name, daemon=True).start()

    def ask(self, order: RankCommand) -> "Future[RankReply]":
        """The answer when it comes; CellGone in its place when the rank has ended."""
        found: Future[RankReply] = Future()
        with self._lock:
            self._number += 1
            number = self._number
            if self._is_over:
                found.set_exception(self._gone())
                return found
            self._waiting[number] = found
            assert self._process.stdin is not None
            # A rank that has just ended is noticed by the thread that listens to it.
            with suppress(OSError):
                self._process.stdin.write(
                    msgspec.json.encode(RankRequest(number=number, order=order)) + b"\n"
                )
                self._process.stdin.flush()
        return found

    def end(self) -> None:
        """Its process is gone."""
        with self._lock:
            was_over, self._is_over = self._is_over, True
        with suppress(OSError):
            assert self._process.stdin is not None
            self._process.stdin.close()
        try:
            self._process.wait(0.0 if was_over else END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                self._answered(msgspec.json.decode(line, type=RankReply))
        with self._lock:
            was_told, self._is_over = self._is_over, True
            left, self._waiting = self._waiting, {}
        for one in left.values():
            one.set_exception(self._gone())
        if not was_told:
            self._on_end(f"{self._name} of the cell ended")

    def _answered(self, answer: RankReply) -> None:
        with self._lock:
            found = self._waiting.pop(answer.number, None)
        if found is None:
            return
        if answer.refusal is None:
            found.set_result(answer)
        else:
            found.set_exception(made(answer.refusal, self._name))

    def _gone(self) -> CellError:
        return CellGone(f"{self._name} of the cell ended")
