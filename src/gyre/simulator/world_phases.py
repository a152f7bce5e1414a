"""Where in a step groups are admitted and become ready: alpha, beta, R and what they predict."""

from collections.abc import Iterable

from gyre.scheduler.config import SchedulerConfig
from gyre.scheduler.dispatch import Boundary, Continuous
from gyre.scheduler.staleness import Staleness
from gyre.simulator.result import StalenessReport
from gyre.simulator.theory import boundary_staleness, continuous_staleness
from gyre.types.ids import GroupId


class PhaseTimes:
    """Sums of phases; a group is remembered from its admission to its step."""

    def __init__(self) -> None:
        self._published_s = 0.0
        self._admitted_s: list[float] = []
        """Since the last publication."""
        self._ready_s: dict[GroupId, float] = {}
        self._starts_s: dict[int, float] = {}
        """When batches were opened, the last two."""
        self._admission_sum = 0.0
        self._num_admissions = 0
        self._completion_sum = 0.0
        self._num_completions = 0
        self._first_start_s: float | None = None
        self._last_start_s = 0.0
        self._num_starts = 0

    def admit(self, group: GroupId, now: float) -> None:
        self._admitted_s.append(now)

    def ready(self, group: GroupId, now: float) -> None:
        self._ready_s[group] = now

    def open(self, step: int, now: float) -> None:
        self._starts_s[step] = now
        self._starts_s.pop(step - 2, None)
        if self._first_start_s is None:
            self._first_start_s = now
        self._last_start_s = now
        self._num_starts += 1

    def step(self, step: int, consumed: Iterable[GroupId]) -> None:
        before_s = self._starts_s.get(step - 1)
        for group in consumed:
            ready_s = self._ready_s.pop(group)
            if before_s is not None:
                self._completion_sum += ready_s - before_s
                self._num_completions += 1

    def publish(self, now: float) -> None:
        interval_s = now - self._published_s
        if interval_s > 0:
            passed_s = sum(at - self._published_s for at in self._admitted_s)
            self._admission_sum += passed_s / interval_s
            self._num_admissions += len(self._admitted_s)
        self._admitted_s.clear()
        self._published_s = now

    def report(self, shape: SchedulerConfig, ages: Staleness) -> StalenessReport:
        ready = ages.ready_at_publication / ages.publications if ages.publications else None
        return StalenessReport(
            histogram=tuple(sorted(ages.histogram.items())),
            mean=ages.mean,
            predicted=_predicted(shape, ready),
            mean_ready=ready,
            admission_phase=_ratio(self._admission_sum, self._num_admissions),
            completion_phase=self._completion_phase(),
        )

    def _completion_phase(self) -> float | None:
        if self._first_start_s is None or self._num_starts < 2:
            return None
        step_s = (self._last_start_s - self._first_start_s) / (self._num_starts - 1)
        mean_s = _ratio(self._completion_sum, self._num_completions)
        return None if mean_s is None or step_s <= 0 else mean_s / step_s


def _predicted(shape: SchedulerConfig, ready: float | None) -> float | None:
    match shape.dispatch:
        case Boundary(extra_dispatch=extra):
            return float(boundary_staleness(extra=extra, steps=shape.steps_per_burst))
        case Continuous(depth=depth):
            if ready is None:
                return None
            return float(
                continuous_staleness(
                    depth=depth,
                    ready=ready,
                    batch=shape.groups_per_batch,
                    steps=shape.steps_per_burst,
                )
            )


def _ratio(total: float, number: int) -> float | None:
    return total / number if number else None
