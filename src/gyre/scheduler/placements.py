"""Which cells enter training together and which go home: Elastic, Async and Colocate."""

from dataclasses import dataclass
from typing import ClassVar

from gyre.scheduler.cells import Cells
from gyre.types.ids import CellId


@dataclass(frozen=True, slots=True, kw_only=True)
class Elastic:
    """Cells enter one by one, core first, as the waterlevel falls (SPEC 2.1)."""

    streaming: bool = True
    """Training begins with the first ready groups; else with all groups of a burst."""
    cells_serve: ClassVar[bool] = True
    keeps_core: ClassVar[bool] = True
    """The core may stay in training over a publication."""
    pauses: ClassVar[bool] = False

    def next_to_enter(self, cells: Cells) -> tuple[CellId, ...]:
        cell = cells.next_in_order()
        return () if cell is None else (cell,)


@dataclass(frozen=True, slots=True, kw_only=True)
class Async:
    """A fixed split: cells train from the start, standalone engines serve (SPEC 9)."""

    streaming: bool = True
    cells_serve: ClassVar[bool] = False
    keeps_core: ClassVar[bool] = True
    pauses: ClassVar[bool] = False

    def next_to_enter(self, cells: Cells) -> tuple[CellId, ...]:
        """A cell that comes back from the dead."""
        cell = cells.lowest_home()
        return () if cell is None else (cell,)


@dataclass(frozen=True, slots=True, kw_only=True)
class Colocate:
    """The whole pool enters and leaves together, beside standalone engines if any (SPEC 9)."""

    streaming: bool = True
    cells_serve: ClassVar[bool] = True
    keeps_core: ClassVar[bool] = False
    pauses: ClassVar[bool] = False

    def next_to_enter(self, cells: Cells) -> tuple[CellId, ...]:
        return cells.all_home()


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumable(Colocate):
    """Colocate that pauses live executions while it trains: the paper's idealised reference.

    No real harness can be paused, so only a simulation has it (SPEC 1.5). It enters when all
    groups of a burst are ready, because no other becomes so while everything stands still.
    """

    streaming: bool = False
    pauses: ClassVar[bool] = True


Placement = Elastic | Async | Colocate | Resumable
