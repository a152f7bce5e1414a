"""The ranks of a cell as a group that takes each command together."""

import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from threading import Lock, Thread, current_thread

import msgspec

from gyre.cell.protocol import made
from gyre.cell.ranks import protocol
from gyre.cell.ranks.protocol import READY, RankCommand, RankReply, RankRequest
from gyre.cell.ranks.worker import RankWorker
from gyre.types.errors import CellError, CellGone, GyreError

END_S = 5.0
"""How long a rank may take to end after its driver has nothing more to say."""


class RankProcess:
    """Another rank, in a process of its own that ends with this one however it ends."""

    def __init__(
        self,
        plan: Path,
        rank: int,
        store: Path,
        *,
        through: Sequence[str] = (),
    ) -> None:
        """`through` is a program that has it started on another node, and stands for it here."""
        self._name = f"rank {rank}"
        self.ended: Future[str] = Future()
        """Says what happened, unless `end` was called."""
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
        self._thread = Thread(target=self._listen, name=self._name, daemon=True)
        self._thread.start()

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
        """Its process is gone, and so is the thread that listened to it."""
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
        if self._thread is not current_thread():
            self._thread.join()

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
            self.ended.set_result(f"{self._name} of the cell ended")

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


class RankGroup:
    """The driver's own rank, and the rank processes that follow it.

    CellGone means that the ranks no longer stand together: the cell is lost.
    """

    def __init__(
        self, part: RankWorker, followers: Sequence[RankProcess], *, patience_s: float
    ) -> None:
        """A rank that has not answered for so long never will."""
        self.part = part
        self._followers = followers
        self._patience_s = patience_s
        self._streaming: list[Future[RankReply]] | None = None

    @property
    def is_streaming(self) -> bool:
        return self._streaming is not None

    def stream(self) -> None:
        """The followers listen to micro-steps until the stream is closed."""
        if self._streaming is None:
            self._streaming = [
                follower.ask(protocol.StreamCommand()) for follower in self._followers
            ]

    def streamed(self) -> None:
        """The driver has closed the stream, and so have all followers."""
        streaming, self._streaming = self._streaming, None
        for one in streaming or ():
            self._answer(one)

    def all(self, order: RankCommand, *, for_ever: bool = False) -> list[RankReply]:
        """Every rank's answer, this one's first, or the first failure once all have answered.

        What a disk may hold up is waited for as long as it takes.
        """
        asked = [follower.ask(order) for follower in self._followers]
        failures: list[GyreError] = []
        answers = []
        try:
            answers.append(self.part.execute(order))
        except GyreError as error:
            failures.append(error)
        for one in asked:
            try:
                answers.append(one.result() if for_ever else self._answer(one))
            except GyreError as error:
                failures.append(error)
        gone = [one for one in failures if isinstance(one, CellGone)]
        for failure in (*gone, *failures):
            raise failure
        return answers

    def surely(
        self, order: RankCommand, *, but: tuple[type[CellError], ...] = ()
    ) -> list[RankReply]:
        """As `all`, where a failure that is none of these leaves the ranks unlike each other."""
        try:
            return self.all(order)
        except but:
            raise
        except GyreError as error:
            raise CellGone(str(error)) from error

    def agreed(self, order: RankCommand) -> list[RankReply]:
        """All ranks have staged what came of it, and committed it; or none has."""
        try:
            answers = self.all(order)
        except CellGone:
            raise
        except GyreError:
            self.surely(protocol.AbortCommand())
            raise
        self.surely(protocol.CommitCommand())
        return answers

    def end(self) -> None:
        """The other ranks have ended, and no call waits for this one."""
        for follower in self._followers:
            follower.end()
        self.part.drop()

    def _answer(self, asked: "Future[RankReply]") -> RankReply:
        try:
            return asked.result(self._patience_s)
        except TimeoutError as error:
            raise CellGone("a rank of the cell does not answer") from error
