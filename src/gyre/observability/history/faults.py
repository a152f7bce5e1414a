"""Faults and recoveries of a run: what went wrong, where, and when it was mended."""

from collections.abc import Iterator
from dataclasses import dataclass

from gyre.journal.journal import Resumed
from gyre.observability.terminal.text import many
from gyre.scheduler.cells import CellState
from gyre.scheduler.messages import (
    CellDied,
    CellRecovered,
    Command,
    EngineLost,
    EngineReturned,
    Event,
    LeaveReason,
    LeaveTraining,
    Published,
    TransitionFailed,
)
from gyre.scheduler.scheduler import Scheduler
from gyre.types.ids import CellId, EngineId
from gyre.types.run_events import (
    CallsDamaged,
    CellRestarted,
    CheckpointFailed,
    CheckpointRefused,
    EngineSlow,
    ExecutionRelaunched,
    JournalWaited,
    ProxyRestarted,
    StepReplayed,
)


@dataclass(slots=True)
class RunFault:
    """A fault of a run: where, what, and until when."""

    at_s: float
    kind: str
    text: str
    cell: int | None = None
    engine: int | None = None
    mended_at_s: float | None = None
    """None while it is not, or where there is nothing to mend."""


class FaultHistory:
    """All faults, in the order in which they were recorded."""

    def __init__(self) -> None:
        self.rows: list[RunFault] = []
        self._open: dict[tuple[str, int], RunFault] = {}

    def until(self, at_s: float) -> Iterator[RunFault]:
        return (row for row in self.rows if row.at_s <= at_s)

    def record_event(self, now: float, event: Event, scheduler: Scheduler) -> None:
        """An event that the scheduler has handled; an engine that is not fenced was not missed."""
        match event:
            case CellDied(cell=cell):
                self._break(cell, RunFault(now, "cell died", f"cell {cell} died", cell))
            case CellRecovered(cell=cell):
                self._mend(now, "cell died", cell)
                self._mend(now, "engine lost", cell)
            case EngineLost(engine=engine):
                self._lose(now, engine, f"engine {engine} stopped answering", scheduler)
            case EngineReturned(engine=engine):
                self._mend(now, "engine lost", engine)
            case Published(silent=silent, version=version):
                for engine in silent:
                    text = f"engine {engine} was silent at the publication of version {version}"
                    self._lose(now, engine, text, scheduler)
            case TransitionFailed(cell=cell, transition=transition):
                text = f"transition {transition} of cell {cell} failed"
                self.rows.append(RunFault(now, "transition failed", text, cell))
            case _:
                pass

    def record_command(self, now: float, order: Command) -> None:
        match order:
            case LeaveTraining(cell=cell, reason=LeaveReason.RESCUE):
                text = f"nobody served, and cell {cell} was called home"
                self.rows.append(RunFault(now, "rescue", text, cell))
            case _:
                pass

    def record_fact(self, now: float, fact: object) -> None:
        if (found := _fault_of(now, fact)) is not None:
            self.rows.append(found)

    def _lose(self, now: float, engine: EngineId, text: str, scheduler: Scheduler) -> None:
        is_cell = engine < scheduler.shape.num_cells
        if is_cell and scheduler.cells.state(CellId(engine)) is not CellState.FENCED:
            return
        if not scheduler.engines.is_ready(engine):
            cell = int(engine) if is_cell else None
            self._break(engine, RunFault(now, "engine lost", text, cell, int(engine)))

    def _break(self, who: int, fault: RunFault) -> None:
        if (fault.kind, who) not in self._open:
            self._open[fault.kind, who] = fault
            self.rows.append(fault)

    def _mend(self, now: float, kind: str, who: int) -> None:
        if (fault := self._open.pop((kind, who), None)) is not None:
            fault.mended_at_s = now


def _fault_of(now: float, fact: object) -> RunFault | None:
    """The fault that a run event reports, if any; one with a duration ends with the event."""
    match fact:
        case EngineSlow(engine=engine, token_s=token_s, peers_token_s=peers_s):
            text = f"engine {engine} takes {token_s:.3g} s for a token, its peers {peers_s:.3g} s"
            return RunFault(now, "engine slow", text, engine=engine)
        case CellRestarted(cell=cell, attempt=attempt, seconds=seconds):
            after = f" after {many(attempt, 'start')} in vain" if attempt else ""
            text = f"cell {cell} was started again{after}"
            return RunFault(now - seconds, "cell restarted", text, cell, mended_at_s=now)
        case StepReplayed(step=step, is_equal=is_equal):
            how = "with the same result" if is_equal else "with another result"
            return RunFault(now, "step replayed", f"step {step + 1} was taken again {how}", cell=0)
        case CheckpointFailed(version=version, reason=reason):
            text = f"checkpoint of version {version} was not written: {reason}"
            return RunFault(now, "checkpoint failed", text)
        case CheckpointRefused(version=version, reason=reason):
            text = f"checkpoint of version {version} is damaged: {reason}"
            return RunFault(now, "checkpoint refused", text)
        case ExecutionRelaunched(execution=name, reason=reason):
            return RunFault(now, "execution relaunched", f"{name} began anew: {reason}")
        case CallsDamaged(execution=name, reason=reason):
            text = f"calls of {name} cannot be read and are not trained: {reason}"
            return RunFault(now, "calls damaged", text)
        case ProxyRestarted(seconds=seconds):
            text = f"the proxy was away for {seconds:.1f} s"
            return RunFault(now - seconds, "proxy restarted", text, mended_at_s=now)
        case JournalWaited(seconds=seconds, reason=reason):
            text = f"the disk did not take the journal for {seconds:.1f} s: {reason}"
            return RunFault(now - seconds, "journal waited", text, mended_at_s=now)
        case Resumed():
            return RunFault(now, "resumed", "another controller went on with the run")
        case _:
            return None
