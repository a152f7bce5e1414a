"""Which engine serves which execution, and how many slots are free.

Rule 1: every running execution has a slot at one ready engine, or is stranded because its engine
was lost.
Rule 2: a new one goes to the engine with most free slots, one that moves to the highest number,
which stays in rollout longest (sec:elastic-execution).
"""

from collections.abc import Iterable
from heapq import heapify, heappop, heappush
from math import floor

from gyre.scheduler.messages import EvaluationId
from gyre.scheduler.policies import TOLERANCE
from gyre.types.errors import InternalError
from gyre.types.ids import EngineId, GroupId

Assignee = tuple[GroupId, int] | EvaluationId
"""Who sits there: a member of a group, or a held-out evaluation."""


class Engines:
    """Which execution has a slot at which engine; an engine that is not ready has no slots."""

    def __init__(self, capacities: Iterable[int], *, overcommit: float) -> None:
        self._capacities = list(capacities)
        self._most = [floor(capacity * overcommit + TOLERANCE) for capacity in self._capacities]
        self._seats: list[dict[Assignee, None]] = [{} for _ in self._capacities]
        self._ready = [False] * len(self._capacities)
        self._calls: list[int | None] = [None] * len(self._capacities)
        self._where: dict[Assignee, EngineId] = {}
        self._stranded: dict[Assignee, None] = {}
        self._by_free: list[tuple[int, int]] = []
        self._generous = True
        self.capacity = 0
        """C_R: executions that the ready engines are meant for (eq:rollout-capacity)."""
        self.limit = 0
        """The same with overcommitment, where it is allowed now."""
        self.num_ready = 0
        self.num_turns = 0
        """Times that one of them became ready, or ceased to be."""

    @property
    def occupied(self) -> int:
        """Executions with a slot, and those that lost theirs."""
        return len(self._where) + len(self._stranded)

    @property
    def num_stranded(self) -> int:
        return len(self._stranded)

    def __len__(self) -> int:
        return len(self._capacities)

    def is_ready(self, engine: EngineId) -> bool:
        return self._ready[engine]

    def load(self, engine: EngineId) -> int:
        return len(self._seats[engine])

    @property
    def loads(self) -> list[int]:
        return [len(seats) for seats in self._seats]

    def engine_of(self, seat: Assignee) -> EngineId | None:
        return self._where.get(seat)

    def knows(self, seat: Assignee) -> bool:
        return seat in self._where or seat in self._stranded

    def open(self, engine: EngineId) -> None:
        if self._ready[engine]:
            return
        self._ready[engine] = True
        self.num_ready += 1
        self.num_turns += 1
        self.capacity += self._capacities[engine]
        self.limit += self._allowed(engine)
        self._note(engine)

    def close(self, engine: EngineId) -> list[Assignee]:
        """The engine takes no execution any more; those it had are stranded, and returned."""
        if not self._ready[engine]:
            return []
        self.capacity -= self._capacities[engine]
        self.limit -= self._allowed(engine)
        self._ready[engine] = False
        self.num_ready -= 1
        self.num_turns += 1
        self._calls[engine] = None
        left = list(self._seats[engine])
        self._seats[engine].clear()
        for seat in left:
            del self._where[seat]
            self._stranded[seat] = None
        return left

    def be_generous(self, generous: bool) -> None:
        """Whether engines may be overcommitted from now on."""
        if generous == self._generous:
            return
        self._generous = generous
        self._recount()

    def report_calls(self, engine: EngineId, calls: int) -> None:
        """An engine as busy as it should be takes no execution above its capacity."""
        if self._ready[engine]:
            self.limit -= self._allowed(engine)
            self._calls[engine] = calls
            self.limit += self._allowed(engine)
            self._note(engine)

    def assign(self, seat: Assignee) -> EngineId:
        """Gives a slot at the engine with the most free ones, the highest number among equals."""
        while self._by_free:
            free, negative = heappop(self._by_free)
            engine = EngineId(-negative)
            if self._ready[engine] and -free == self._num_free(engine) > 0:
                self._take(seat, engine)
                return engine
        raise InternalError(f"no engine has room for {seat}")

    def unseat(self, seat: Assignee) -> None:
        self._stranded.pop(seat, None)
        engine = self._where.pop(seat, None)
        if engine is not None:
            del self._seats[engine][seat]
            self._note(engine)

    def rehouse(self, seats: Iterable[Assignee]) -> dict[Assignee, EngineId]:
        """Gives stranded executions slots, highest engine numbers first; some may get none."""
        found: dict[Assignee, EngineId] = {}
        waiting = iter(list(seats))
        for number in reversed(range(len(self._capacities))):
            engine = EngineId(number)
            if not self._ready[engine]:
                continue
            for _ in range(self._num_free(engine)):
                seat = next(waiting, None)
                if seat is None:
                    return found
                del self._stranded[seat]
                self._take(seat, engine)
                found[seat] = engine
        return found

    def rehouse_stranded(self) -> dict[Assignee, EngineId]:
        if not self._stranded or self.limit <= len(self._where):
            return {}
        return self.rehouse(self._stranded)

    def _take(self, seat: Assignee, engine: EngineId) -> None:
        self._seats[engine][seat] = None
        self._where[seat] = engine
        self._note(engine)

    def _allowed(self, engine: EngineId) -> int:
        calls = self._calls[engine]
        capacity = self._capacities[engine]
        if not self._generous or (calls is not None and calls >= capacity):
            return capacity
        return self._most[engine]

    def _num_free(self, engine: EngineId) -> int:
        return self._allowed(engine) - len(self._seats[engine])

    def _note(self, engine: EngineId) -> None:
        """Notes the engine's free slots; outdated entries are skipped when they come up."""
        if self._ready[engine] and self._num_free(engine) > 0:
            heappush(self._by_free, (-self._num_free(engine), -engine))
        if len(self._by_free) > 8 * len(self._capacities) + 64:
            self._recount()

    def _recount(self) -> None:
        ready = [EngineId(one) for one, is_ready in enumerate(self._ready) if is_ready]
        self.limit = sum(self._allowed(engine) for engine in ready)
        self._by_free = [
            (-self._num_free(engine), -engine) for engine in ready if self._num_free(engine) > 0
        ]
        heapify(self._by_free)
