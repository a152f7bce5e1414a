"""The thread that drives a cell's pipeline: claims stream, orders come between two streams.

Rule 1: an order finds the stream closed, so that all that was claimed is in the ranks' sums.
Rule 2: what fails in the stream loses the cell, because its sum is then of nothing that is known.
"""

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from threading import Condition, Thread
from typing import Any, TypeVar

from gyre.cell.ranks.ranked_crew import RankGroup
from gyre.cell.ranks.ranked_feed import ClaimResult, MicroStepStream, PendingClaim
from gyre.config.sections import LossConfig
from gyre.types.errors import CellError, CellGone, GyreError

END_S = 10.0
"""How long the thread may take to notice that the cell ends."""
R = TypeVar("R")


class _Act:
    """Something that the thread is to do between two streams."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self.work = work
        self.done: Future[Any] = Future()


class Driver:
    """What came for the cell, in order, and the thread that does it."""

    def __init__(
        self,
        crew: RankGroup,
        objective: LossConfig,
        *,
        life_s: float,
        on_failure: Callable[[], None],
    ) -> None:
        """A paused stream says so every `life_s`; `on_failure`: the cell is lost."""
        self.held: set[int] = set()
        """Leases that are in the ranks' sums, or on their way there."""
        self.failure: CellError | None = None
        """What the cell was lost by."""
        self._crew = crew
        self._trainer = crew.part.trainer
        self._life_s = life_s
        self._on_failure = on_failure
        self._inbox: deque[PendingClaim | _Act] = deque()
        self._came = Condition()
        self._acting: _Act | None = None
        self._feed = MicroStepStream(objective, self._next_claim, self.held)
        self._thread = Thread(target=self._work, name="driver", daemon=True)
        self._thread.start()

    def do(self, work: Callable[[], R]) -> R:
        """What it gives, done by the thread while nothing streams."""
        act = _Act(work)
        self._put(act)
        found: R = act.done.result()
        return found

    def claimed(self, one: PendingClaim) -> ClaimResult:
        """What the claim came to; its gradient is in the sums when the stream is next closed."""
        self._put(one)
        return one.done.result()

    def fail(self, error: CellError) -> None:
        """The cell is lost; the first to say so is right."""
        with self._came:
            if self.failure is not None:
                return
            self.failure = error
            self._came.notify()
        self._on_failure()

    def end(self) -> None:
        """Whoever still waits gets an error; the thread is over, or will never matter."""
        with self._came:
            self.failure = self.failure or CellGone("the cell ends")
            self._came.notify()
        self._crew.end()
        self._thread.join(END_S)
        self._refuse_all()

    def _put(self, item: PendingClaim | _Act) -> None:
        with self._came:
            if self.failure is not None:
                raise CellGone(f"the cell is lost: {self.failure}")
            self._inbox.append(item)
            self._came.notify()

    # What follows runs in the thread.

    def _work(self) -> None:
        while self.failure is None:
            try:
                self._turn()
            except CellError as error:
                self.fail(error)
        self._crew.part.drop()
        self._refuse_all()

    def _turn(self) -> None:
        """One order, or the claims that are there, or a sign of life to a stream that is open."""
        with self._came:
            self._came.wait_for(
                lambda: bool(self._inbox) or self.failure is not None,
                timeout=self._life_s if self._crew.is_streaming else None,
            )
            if self.failure is not None:
                return
            first = self._inbox[0] if self._inbox else None
            if isinstance(first, _Act):
                self._inbox.popleft()
        if isinstance(first, _Act):
            self._act(first)
        elif first is not None and self._trainer.is_resting:
            while (one := self._next_claim()) is not None:
                one.done.set_exception(CellError("the trainer rests: restore it first"))
        else:
            self._crew.stream()
            self._trainer.drive(self._feed)

    def _act(self, act: _Act) -> None:
        self._acting = act
        self._close()
        try:
            found = act.work()
        except CellGone:
            raise
        except GyreError as error:
            act.done.set_exception(error)
        else:
            act.done.set_result(found)
        self._acting = None

    def _close(self) -> None:
        """What is in flight has come back, on every rank."""
        if not self._crew.is_streaming:
            return
        self._feed.is_closing = True
        self._trainer.drive(self._feed)
        self._feed.is_closing = False
        self._crew.streamed()

    def _next_claim(self) -> PendingClaim | None:
        """The first that came, unless an order came before it."""
        with self._came:
            if not self._inbox or isinstance(self._inbox[0], _Act):
                return None
            first = self._inbox.popleft()
        assert isinstance(first, PendingClaim)
        return first

    def _refuse_all(self) -> None:
        """The first that waits gets the failure itself, because it may be its fault."""
        with self._came:
            acting = [] if self._acting is None else [self._acting]
            left = [*acting, *self._feed.unfinished(), *self._inbox]
            self._inbox.clear()
            self._acting = None
        failure = self.failure
        for one in left:
            # Somebody may have answered it at the last moment.
            with suppress(InvalidStateError):
                one.done.set_exception(failure or CellGone("the cell ends"))
            failure = CellGone(f"the cell is lost: {self.failure}")
