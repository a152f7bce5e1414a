"""What a simulation records as it runs."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from gyre.scheduler.cells import CellState
from gyre.scheduler.config import SchedulerConfig
from gyre.scheduler.groups import Staleness
from gyre.scheduler.messages import StopReason
from gyre.scheduler.scheduler import Scheduler
from gyre.simulator.result import (
    MOST_LEVELS,
    LowerBounds,
    NodeTime,
    Role,
    RoleInterval,
    SimulatedCounts,
    SimulatedLevel,
    SimulatedStep,
    SimulationResult,
    StalenessReport,
)
from gyre.simulator.scenario import Scenario
from gyre.simulator.theory import (
    Link,
    elastic_packing_bound,
    latency_bounds,
    long_run_staleness,
    split_packing_bound,
)
from gyre.simulator.workload import SimulatedExecution, sizes
from gyre.types.ids import CellId, GroupId


class PhaseTimes:
    """Sums of the phases of groups, each remembered from its admission to its step."""

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
            predicted=long_run_staleness(shape, ready=ready),
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


def _ratio(total: float, number: int) -> float | None:
    return total / number if number else None


ROLES = {
    CellState.SERVING: Role.ROLLOUT,
    CellState.ENTERING: Role.ENTERING,
    CellState.TRAINING: Role.TRAINING,
    CellState.LEAVING: Role.LEAVING,
    CellState.WAITING: Role.WAITING,
    CellState.FENCED: Role.FENCED,
    CellState.DEAD: Role.DEAD,
}


@dataclass(frozen=True, slots=True)
class _Group:
    version: int
    slot_s: float
    """Sum over its executions of the time each holds a place, on full engines."""
    longest_s: float
    """From launch to closing of its slowest execution, alone on its engine."""
    training_s: float
    """On one cell."""


class SimulationRecorder:
    """Records a simulation: sums over time, and an entry per step and per change of a role."""

    def __init__(self, scenario: Scenario, scheduler: Scheduler) -> None:
        self._scenario = scenario
        self._scheduler = scheduler
        self.counts: Counter[str] = Counter()
        self.phases = PhaseTimes()
        self._now = 0.0
        self._steps: list[SimulatedStep] = []
        self._busy_s = 0.0
        self._roles: list[list[RoleInterval]] = [[] for _ in range(scenario.shape.num_cells)]
        self._role = [ROLES[scheduler.cells.state(cell)] for cell in scheduler.cells]
        self._role_since = [0.0] * scenario.shape.num_cells
        self._levels: list[SimulatedLevel] = []
        self._stride = 1
        self._until_level = 0
        self._slot_s = 0.0
        self._offered_s = 0.0
        self._cell_s: dict[Role, float] = dict.fromkeys(Role, 0.0)
        self._training_s_at_step = 0.0
        self._groups: dict[GroupId, _Group] = {}
        self._consumed_slot_s = 0.0
        self._consumed_training_s = 0.0
        self._chains: dict[tuple[int, int], float] = {}

    def pass_to(self, now: float) -> None:
        """Everything was as it is since the last time."""
        passed = now - self._now
        if passed <= 0:
            return
        engines = self._scheduler.engines
        self._slot_s += passed * min(engines.occupied, engines.capacity)
        self._offered_s += passed * engines.capacity
        self._now = now

    def note_cell(self, cell: CellId) -> None:
        """Its role may have changed."""
        role = ROLES[self._scheduler.cells.state(cell)]
        if role is not self._role[cell]:
            self._end_role(cell)
            self._role[cell] = role

    def is_entering(self, cell: CellId) -> bool:
        return self._role[cell] is Role.ENTERING

    def note_level(self) -> None:
        """Keeps every so many-th level, and half of them when they become too many."""
        if self._until_level:
            self._until_level -= 1
            return
        self._until_level = self._stride - 1
        self._levels.append(self._level())
        if len(self._levels) >= MOST_LEVELS:
            self._levels = self._levels[::2]
            self._stride *= 2

    def admit(self, group: GroupId, version: int, executions: Sequence[SimulatedExecution]) -> None:
        scenario = self._scenario
        deadlines = scenario.workload.deadlines
        courses = [execution.course(deadlines) for execution in executions]
        holds = scenario.shape.evaluation_holds_slot
        training = scenario.costs.training
        alone = 1 - scenario.workload.decode.share
        self._groups[group] = _Group(
            version=version,
            slot_s=sum(course.total_s if holds else course.rollout_s for course in courses),
            longest_s=max(
                course.rollout_s * alone + course.closing.evaluation_s for course in courses
            ),
            training_s=sum(
                training.seconds(size, nodes=scenario.nodes_per_cell)
                for size in sizes(executions, per_claim=len(executions))
            ),
        )
        self.phases.admit(group, self._now)

    def step(
        self, step: int, consumed: Mapping[GroupId, bool], *, num_cells: int, busy_s: float
    ) -> None:
        """An update was taken with these groups, void ones marked, after `busy_s` of claims."""
        staleness: Counter[int] = Counter()
        burst = step // self._scenario.shape.steps_per_burst + 1
        for number, is_void in consumed.items():
            group = self._groups.pop(number)
            staleness[step - group.version] += 1
            self._consumed_slot_s += group.slot_s
            self._consumed_training_s += 0.0 if is_void else group.training_s
            after = group.version // self._scenario.shape.steps_per_burst
            chain = (after, burst)
            self._chains[chain] = max(self._chains.get(chain, 0.0), group.longest_s)
        self.phases.step(step, consumed)
        ages = self._scheduler.staleness
        training_s = self._training_s()
        in_training_s = training_s - self._training_s_at_step
        spent_s = busy_s - self._busy_s
        self._steps.append(
            SimulatedStep(
                number=step + 1,
                at_s=self._now,
                took_s=self._now - (self._steps[-1].at_s if self._steps else 0.0),
                staleness=tuple(sorted(staleness.items())),
                num_void=sum(consumed.values()),
                num_cells=num_cells,
                training_cell_s=spent_s,
                idle_cell_s=max(0.0, in_training_s - spent_s),
                identity=ages.identity(step + 1),
            )
        )
        self._training_s_at_step, self._busy_s = training_s, busy_s

    def record(self, *, stopped: StopReason | None, busy_s: float) -> SimulationResult:
        for cell in self._scheduler.cells:
            self._end_role(cell)
        ledger = self._scheduler.ledger
        counters = self._scheduler.counters
        return SimulationResult(
            name=self._scenario.name,
            seed=self._scenario.seed,
            stopped=stopped,
            end_s=self._now,
            steps=tuple(self._steps),
            roles=tuple(tuple(intervals) for intervals in self._roles),
            levels=(*self._levels, self._level()),
            node_s=self._node_time(busy_s),
            staleness=self.phases.report(self._scenario.shape, self._scheduler.staleness),
            bounds=self._bounds(),
            counts=SimulatedCounts(
                groups_admitted=ledger.admitted,
                groups_trained=ledger.trained,
                groups_void=ledger.void,
                executions_dispatched=counters.dispatched,
                executions_launched=counters.launched,
                executions_terminated=counters.terminated,
                **self.counts,
            ),
        )

    def _end_role(self, cell: CellId) -> None:
        start_s = self._role_since[cell]
        if self._now > start_s:
            interval = RoleInterval(start_s=start_s, end_s=self._now, role=self._role[cell])
            self._roles[cell].append(interval)
            self._cell_s[self._role[cell]] += self._now - start_s
        self._role_since[cell] = self._now

    def _training_s(self) -> float:
        """Time that cells have been in training, up to now."""
        open_s = (
            self._now - since_s
            for role, since_s in zip(self._role, self._role_since, strict=True)
            if role is Role.TRAINING
        )
        return self._cell_s[Role.TRAINING] + sum(open_s)

    def _level(self) -> SimulatedLevel:
        return SimulatedLevel(
            at_s=self._now,
            waterlevel=self._scheduler.counters.waterlevel,
            running=self._scheduler.counters.running,
            capacity=self._scheduler.engines.capacity,
            num_ready=self._scheduler.burst.ready,
        )

    def _node_time(self, busy_s: float) -> NodeTime:
        nodes = self._scenario.nodes_per_cell
        per_slot = self._scenario.node_per_slot
        cells = self._cell_s
        return NodeTime(
            rollout_busy=self._slot_s * per_slot,
            rollout_idle=(self._offered_s - self._slot_s) * per_slot,
            training_busy=busy_s * nodes,
            training_idle=max(0.0, cells[Role.TRAINING] - busy_s) * nodes,
            switching=(cells[Role.ENTERING] + cells[Role.LEAVING]) * nodes,
            away=(cells[Role.WAITING] + cells[Role.FENCED] + cells[Role.DEAD]) * nodes,
        )

    def _bounds(self) -> LowerBounds:
        shape, costs = self._scenario.shape, self._scenario.costs
        slot_s, training_s = self._consumed_slot_s, self._consumed_training_s
        if self._scenario.cells_serve:
            packing_s = elastic_packing_bound(
                slot_s=slot_s,
                training_cell_s=training_s,
                num_cells=shape.num_cells,
                cell_capacity=shape.cell_capacity,
                standalone_capacity=shape.standalone_capacity,
            )
        else:
            packing_s = split_packing_bound(
                slot_s=slot_s,
                training_cell_s=training_s,
                num_training_cells=shape.num_cells,
                capacity=shape.standalone_capacity,
            )
        num_bursts = len(self._steps) // shape.steps_per_burst
        step_s = training_s / max(1, len(self._steps)) / shape.num_cells + costs.update_s
        latency_s = latency_bounds(
            (
                Link(after=after, consumed_in=burst, duration_s=longest_s)
                for (after, burst), longest_s in self._chains.items()
                if burst <= num_bursts
            ),
            num_bursts=num_bursts,
            burst_s=shape.steps_per_burst * step_s + costs.publication_s,
            last_group_s=costs.update_s + costs.publication_s,
        )[-1]
        return LowerBounds(packing_s=packing_s, latency_s=latency_s)
