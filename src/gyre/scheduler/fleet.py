"""Cells and engines change their state: in and out of training, lost, fenced, returned.

Rule 1: an engine is open exactly while its cell serves (a standalone one: while it is not fenced).
Rule 2: a cell is asked again after a failed transition, twice; then a satellite only serves or is
restarted, and the core's failure is the caller's to act on. Entering without a core is no failure.
"""

from collections.abc import Iterable, Iterator

from gyre.scheduler.cells import Cells, CellState
from gyre.scheduler.config import SchedulerConfig
from gyre.scheduler.engines import Assignee, Engines
from gyre.scheduler.messages import (
    CallsReported,
    CellDied,
    CellRecovered,
    CellServing,
    CellTraining,
    Command,
    EngineLost,
    EngineReturned,
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
