"""How long calls were held without an engine, which their executions are not charged (SPEC 6.1)."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from gyre.proxy.counts import RouterCounts
from gyre.proxy.seats import Call


class Held:
    """Seconds by execution, those of calls that wait now included."""

    def __init__(self, clock: Callable[[], float], counts: RouterCounts) -> None:
        self._clock = clock
        self._counts = counts
        self._since: dict[Call, float] = {}
        self._by_execution: Counter[str] = Counter()

    @contextmanager
    def holding(self, call: Call) -> Iterator[None]:
        """The call has no engine while this lasts."""
        self._since[call] = began = self._clock()
        try:
            yield
        finally:
            del self._since[call]
            passed = self._clock() - began
            call.held_s += passed
            self._counts.held_s += passed
            self._by_execution[call.execution] += passed  # type: ignore[assignment]

    def of(self, execution: str) -> float:
        now = self._clock()
        waiting = sum(now - at for call, at in self._since.items() if call.execution == execution)
        return float(self._by_execution[execution]) + waiting

    def forget(self, execution: str) -> None:
        """It is over; calls that still wait count for nobody."""
        self._by_execution.pop(execution, None)
