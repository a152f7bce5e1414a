"""Cells and engines: where each stands, which is next, and how they change their state.

Rule 1: an engine is open exactly while its cell serves (a standalone one: while it is not fenced).
Rule 2: a cell is asked again after a failed transition, twice; then a satellite only serves or is
restarted, and the core's failure is the caller's to act on. Entering without a core is no failure.
"""

from collections.abc import Iterable, Iterator

from gyre.scheduler import policies
from gyre.scheduler.cells import Cells, CellState
from gyre.scheduler.config import SchedulerConfig
from gyre.scheduler.executions import Assignee, Engines, ExecutionTable
from gyre.scheduler.groups import Burst, Phase
from gyre.scheduler.messages import (
    CallsReported,
    CellDied,
    CellRecovered,
    CellServing,
    CellTraining,
    Command,
    EngineLost,
    EngineReturned,
    EnterTraining,
    LeaveReason,
    LeaveTraining,
    LoadWeights,
    RestartCell,
    TransitionFailed,
)
from gyre.types.errors import InternalError
from gyre.types.ids import CORE, CellId, EngineId

_HOME = (CellState.SERVING, CellState.WAITING, CellState.FENCED)


class Fleet:
    """The state of all cells, of their engines, and of the standalone engines."""

    def __init__(self, shape: SchedulerConfig) -> None:
        self._serves = shape.placement.cells_serve
        start = CellState.SERVING if self._serves else CellState.TRAINING
        self.cells = Cells(shape.num_cells, start=start)
        capacities = [shape.cell_capacity] * shape.num_cells
        self.engines = Engines(
            [*capacities, *shape.standalone_capacities], overcommit=shape.overcommit
        )
        self._reasons: dict[CellId, LeaveReason] = {}
        self._asked: set[EngineId] = set()
        for engine in self._engines():
            if self._serves or not self._is_cell(engine):
                self.engines.open(engine)

    @property
    def num_away(self) -> int:
        """Cells that are missing in rollout and will come back to it; none of a fixed split."""
        return self.cells.num_away if self._serves else 0

    def is_home(self, engine: int) -> bool:
        """It serves, or waits for weights and no role is being changed."""
        if not self._is_cell(EngineId(engine)):
            return True
        return self._serves and self.cells.state(CellId(engine)) in _HOME

    def enter(self, cells: Iterable[CellId]) -> Iterator[tuple[CellId, int, list[Assignee]]]:
        """Each cell with its transition, and who must move from its engine."""
        for cell in cells:
            transition = self.cells.begin(cell, CellState.ENTERING)
            yield cell, transition, self.engines.close(EngineId(cell))

    def leave(self, cell: CellId, reason: LeaveReason) -> LeaveTraining:
        self._reasons[cell] = reason
        transition = self.cells.begin(cell, CellState.LEAVING)
        return LeaveTraining(cell=cell, transition=transition, reason=reason)

    def entered(self, event: CellTraining) -> bool:
        if not self._answers(event, CellState.ENTERING):
            return False
        self.cells.become(event.cell, CellState.TRAINING)
        self.cells.succeeded(event.cell)
        return True

    def came_home(self, event: CellServing, *, waits: bool) -> bool:
        if not self._answers(event, CellState.LEAVING):
            return False
        self.cells.succeeded(event.cell)
        if waits:
            self.cells.become(event.cell, CellState.WAITING)
        else:
            self._serve(event.cell)
        return True

    def failed(self, event: TransitionFailed) -> list[Command] | None:
        """What follows for a satellite; None when the core has failed too often."""
        state = self.cells.state(self._known(event.cell))
        if not self.cells.is_current(event.cell, event.transition):
            return []
        if state is CellState.ENTERING and not self.cells.has_core:
            # It had no core to take weights from, which is no failure of its own.
            self._serve(event.cell)
            return []
        failed_too_often = self.cells.failed(event.cell)
        if failed_too_often and event.cell == CORE:
            return None
        if state is CellState.LEAVING:
            if failed_too_often:
                return self._mark_dead(event.cell)
            return [self.leave(event.cell, self._reasons[event.cell])]
        if failed_too_often:
            self.cells.serve_only(event.cell)
        self._serve(event.cell)
        return []

    def died(self, event: CellDied) -> list[Command]:
        if self.cells.state(self._known(event.cell)) is CellState.DEAD:
            return []
        return self._mark_dead(event.cell)

    def recovered(self, event: CellRecovered, *, published: int) -> list[Command]:
        if self.cells.state(self._known(event.cell)) is not CellState.DEAD:
            return []
        return self._readmit(EngineId(event.cell), event.version, published)

    def lost(self, event: EngineLost, *, published: int) -> list[Command]:
        self._known_engine(event.engine)
        if self._is_cell(event.engine):
            state = self.cells.state(CellId(event.engine))
            if state not in (CellState.SERVING, CellState.WAITING) or not self._serves:
                return []
        elif not self.engines.is_ready(event.engine):
            return []
        return [self._fence(event.engine, published)]

    def returned(self, event: EngineReturned, *, published: int) -> list[Command]:
        if not self._is_fenced(self._known_engine(event.engine)):
            return []
        return self._readmit(event.engine, event.version, published)

    def reported(self, event: CallsReported) -> None:
        self.engines.report_calls(self._known_engine(event.engine), event.calls)

    def publish_to(self) -> tuple[EngineId, ...]:
        """Engines that should get new weights now: at home, and not fenced."""
        engines = tuple(engine for engine in self._engines() if self._takes_weights(engine))
        self._asked = set(engines)
        return engines

    def published(self, version: int, *, silent: tuple[EngineId, ...]) -> list[Command]:
        """Engines that have the weights serve; others are fenced until they have loaded them."""
        has_it = self._asked.difference(silent)
        commands: list[Command] = []
        for engine in self._engines():
            if self._takes_weights(engine):
                if engine not in has_it:
                    commands.append(self._fence(engine, version))
                elif self._is_cell(engine):
                    self._serve(CellId(engine))
            elif self._is_fenced(engine):
                commands.append(LoadWeights(engine=engine, version=version))
        return commands

    def _mark_dead(self, cell: CellId) -> list[Command]:
        self.cells.become(cell, CellState.DEAD)
        self.cells.succeeded(cell)
        self._shut(EngineId(cell))
        return [RestartCell(cell=cell)]

    def _serve(self, cell: CellId) -> None:
        self.cells.become(cell, CellState.SERVING)
        if self._serves:
            self.engines.open(EngineId(cell))

    def _fence(self, engine: EngineId, version: int) -> Command:
        self._shut(engine)
        if self._is_cell(engine):
            self.cells.become(CellId(engine), CellState.FENCED)
        return LoadWeights(engine=engine, version=version)

    def _shut(self, engine: EngineId) -> None:
        """What it may have acknowledged before is worth nothing now."""
        self.engines.close(engine)
        self._asked.discard(engine)

    def _readmit(self, engine: EngineId, version: int, published: int) -> list[Command]:
        """It serves if it has what is published, else it loads that first."""
        must_load = self._serves or not self._is_cell(engine)
        if must_load and version != published:
            return [self._fence(engine, published)]
        if self._is_cell(engine):
            self._serve(CellId(engine))
        else:
            self.engines.open(engine)
        return []

    def _takes_weights(self, engine: EngineId) -> bool:
        if not self._is_cell(engine):
            return self.engines.is_ready(engine)
        state = self.cells.state(CellId(engine))
        return self._serves and state in (CellState.SERVING, CellState.WAITING)

    def _is_fenced(self, engine: EngineId) -> bool:
        if self._is_cell(engine):
            return self.cells.state(CellId(engine)) is CellState.FENCED
        return not self.engines.is_ready(engine)

    def _answers(self, event: CellTraining | CellServing, state: CellState) -> bool:
        is_there = self.cells.state(self._known(event.cell)) is state
        return is_there and self.cells.is_current(event.cell, event.transition)

    def _is_cell(self, engine: EngineId) -> bool:
        return engine < len(self.cells)

    def _engines(self) -> Iterator[EngineId]:
        return map(EngineId, range(len(self.engines)))

    def _known(self, cell: CellId) -> CellId:
        if not 0 <= cell < len(self.cells):
            raise InternalError(f"there is no cell {cell}")
        return cell

    def _known_engine(self, engine: EngineId) -> EngineId:
        if not 0 <= engine < len(self.engines):
            raise InternalError(f"there is no engine {engine}")
        return engine


class TransitionPolicy:
    """Decides when cells enter and leave training, by the dwell timer and the rescue timer.

    Rule 1: the dwell timer watches supply only, and restarts after each transition and at each
    batch start (SPEC 2.1).
    Rule 2: no cell enters while another switches, nor after the last update of a burst.
    """

    def __init__(
        self, shape: SchedulerConfig, burst: Burst, fleet: Fleet, rollout: ExecutionTable
    ) -> None:
        self._shape = shape
        self._burst = burst
        self._fleet = fleet
        self._rollout = rollout
        self.supply_since: float | None = None
        """Since when supply has held; None while it does not."""
        self._dark_since: float | None = None

    def restart_dwell(self) -> None:
        self.supply_since = None

    def wake_at(self, now: float) -> float | None:
        times = []
        is_open = self._burst.phase is Phase.TRAINING and not self._fleet.cells.num_switching
        if self.supply_since is not None and is_open:
            times.append(self.supply_since + self._shape.supply_dwell_s)
        if self._dark_since is not None:
            times.append(self._dark_since + self._shape.rescue_s)
        return min((time for time in times if time > now), default=None)

    def decide(self, now: float) -> list[Command]:
        self._watch_supply(now)
        commands = self._enter(now)
        self._watch_darkness(now)
        return commands + self._rescue(now)

    def core_stays(self, num_groups: int) -> bool:
        """Whether the core goes on training while this many groups are dispatched."""
        placement = self._shape.placement
        if not placement.cells_serve:
            return True
        return placement.keeps_core and policies.may_stay(
            ready=self._burst.ready,
            needed=self._shape.supply_groups if placement.streaming else self._burst.groups_left,
            waterlevel=self._rollout.waterlevel,
            dispatching=num_groups * self._shape.group_size,
            capacity=self._fleet.engines.capacity,
        )

    def _watch_supply(self, now: float) -> None:
        supply = policies.supply(ready=self._burst.ready, needed=self._burst.needed)
        if supply < self._shape.supply_groups:
            self.supply_since = None
        elif self.supply_since is None:
            self.supply_since = now

    def _is_supplied(self, now: float) -> bool:
        if self._fleet.cells.core is not CellState.TRAINING:
            if self._burst.batch_open:
                return True
            if not self._shape.placement.streaming:
                return self._burst.ready >= self._burst.groups_left
        return policies.has_dwelt(
            since=self.supply_since, dwell_s=self._shape.supply_dwell_s, now=now
        )

    def _enter(self, now: float) -> list[Command]:
        placement = self._shape.placement
        cells = self._fleet.cells
        if self._burst.phase is not Phase.TRAINING or cells.num_switching:
            return []
        if not placement.cells_serve:
            return self._send(placement.next_to_enter(cells))
        if not self._is_supplied(now) or not self._may_spare(1):
            return []
        chosen = placement.next_to_enter(cells)
        return self._send(chosen) if self._may_spare(len(chosen)) else []

    def _may_spare(self, num_cells: int) -> bool:
        return self._shape.placement.pauses or policies.may_enter_training(
            waterlevel=self._rollout.waterlevel,
            capacity=self._fleet.engines.capacity,
            leaving=num_cells * self._shape.cell_capacity,
        )

    def _send(self, chosen: tuple[CellId, ...]) -> list[Command]:
        engines = self._fleet.engines
        commands: list[Command] = []
        # All close before any execution moves, so that none moves to a cell that leaves too.
        for cell, transition, displaced in list(self._fleet.enter(chosen)):
            engines.be_generous(self._fleet.num_away == 0)
            places = {} if self._shape.placement.pauses else engines.rehouse(displaced)
            moves, evaluations = self._rollout.moves(places)
            commands.append(
                EnterTraining(
                    cell=cell, transition=transition, moves=moves, evaluations=evaluations
                )
            )
        return commands

    def _watch_darkness(self, now: float) -> None:
        waits = self._rollout.counters.waterlevel + self._rollout.evaluations.num_running > 0
        placement = self._shape.placement
        may_rescue = placement.cells_serve and not placement.pauses
        is_dark = waits and may_rescue and self._fleet.engines.num_ready == 0
        if not is_dark or self._burst.phase is not Phase.TRAINING:
            self._dark_since = None
        elif self._dark_since is None:
            self._dark_since = now

    def _rescue(self, now: float) -> list[Command]:
        """The last cell that joined goes home when no engine can serve (SPEC 2.5)."""
        is_due = policies.has_dwelt(since=self._dark_since, dwell_s=self._shape.rescue_s, now=now)
        cell = self._fleet.cells.last_joined() if is_due else None
        if cell is None or self._fleet.cells.num_leaving:
            return []
        self._dark_since = now
        return [self._fleet.leave(cell, LeaveReason.RESCUE)]
