"""How long calls were held without an engine, which their executions are not charged (SPEC 6.1)."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from gyre.aio.waits import WaitTimer
from gyre.proxy.counts import RouterCounts
from gyre.proxy.routing.seats import RoutedCall


class HeldTimer:
    """Seconds by execution in which one of its calls waited, or several did."""

    def __init__(self, clock: Callable[[], float], counts: RouterCounts) -> None:
        self._clock = clock
        self._counts = counts
        self._by_execution: dict[str, WaitTimer] = {}

    @contextmanager
    def holding(self, call: RoutedCall) -> Iterator[None]:
        """The call has no engine while this lasts."""
        began = self._clock()
        waits = self._by_execution.setdefault(call.execution, WaitTimer())
        waits.begin(began)
        try:
            yield
        finally:
            now = self._clock()
            waits.end(now)
            call.held_s += now - began
            self._counts.held_s += now - began

    def of(self, execution: str) -> float:
        waits = self._by_execution.get(execution)
        return 0.0 if waits is None else waits.total_s(self._clock())

    def forget(self, execution: str) -> None:
        """It is over; calls that still wait count for nobody."""
        self._by_execution.pop(execution, None)
