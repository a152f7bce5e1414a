"""Where each cell stands between serving and training, and which one is next."""

from collections.abc import Iterator
from enum import Enum

from gyre.types.ids import CORE, CellId

STRIKES = 3
"""Failed transitions in a row after which a cell is not asked again (SPEC 2.1)."""


class CellState(Enum):
    """What a cell does; all but SERVING, FENCED and DEAD count in k."""

    SERVING = "serving"
    ENTERING = "entering"
    TRAINING = "training"
    LEAVING = "leaving"
    WAITING = "waiting"
    """Home after a burst, taking no calls before the weights are published."""
    FENCED = "fenced"
    """Home, but its engine has not shown that it holds the published weights."""
    DEAD = "dead"


_SWITCHING = (CellState.ENTERING, CellState.LEAVING)
_AWAY = (CellState.ENTERING, CellState.TRAINING, CellState.LEAVING, CellState.WAITING)
_JOINED = (CellState.ENTERING, CellState.TRAINING)


class Cells:
    """The cells in their order, core first."""

    def __init__(self, num_cells: int, *, start: CellState) -> None:
        self._states = [start] * num_cells
        self._counts = dict.fromkeys(CellState, 0)
        self._counts[start] = num_cells
        self._transitions: list[int | None] = [None] * num_cells
        self._failures = [0] * num_cells
        self._serving_only: set[CellId] = set()
        self._next_transition = 0

    def __len__(self) -> int:
        return len(self._states)

    def __iter__(self) -> Iterator[CellId]:
        return map(CellId, range(len(self._states)))

    @property
    def satellites(self) -> Iterator[CellId]:
        return map(CellId, range(1, len(self._states)))

    def state(self, cell: CellId) -> CellState:
        return self._states[cell]

    @property
    def states(self) -> tuple[CellState, ...]:
        return tuple(self._states)

    @property
    def core(self) -> CellState:
        return self._states[CORE]

    @property
    def has_core(self) -> bool:
        """The core is in training or on its way there, and others can follow it."""
        return self.core in _JOINED

    @property
    def num_switching(self) -> int:
        return sum(self._counts[state] for state in _SWITCHING)

    @property
    def num_leaving(self) -> int:
        return self._counts[CellState.LEAVING]

    @property
    def num_away(self) -> int:
        """k: from the start of the way into training until the engine is ready again."""
        return sum(self._counts[state] for state in _AWAY)

    def satellites_out(self) -> int:
        """Satellites that training still has, or that are switching."""
        joined = self._counts[CellState.TRAINING] + self.num_switching
        return joined - (self.core in (*_SWITCHING, CellState.TRAINING))

    def serves_only(self, cell: CellId) -> bool:
        return cell in self._serving_only

    def become(self, cell: CellId, state: CellState) -> None:
        """Sets the cell's state, and ends any transition of it."""
        self._counts[self._states[cell]] -= 1
        self._counts[state] += 1
        self._states[cell] = state
        self._transitions[cell] = None

    def begin(self, cell: CellId, state: CellState) -> int:
        """Begins a new transition, which makes answers to an older one outdated."""
        self.become(cell, state)
        number = self._next_transition
        self._next_transition += 1
        self._transitions[cell] = number
        return number

    def transition(self, cell: CellId) -> int | None:
        """The transition whose answer is owed, if any."""
        return self._transitions[cell]

    def is_current(self, cell: CellId, transition: int) -> bool:
        return self._transitions[cell] == transition

    def succeeded(self, cell: CellId) -> None:
        self._failures[cell] = 0

    def failed(self, cell: CellId) -> bool:
        """Counts a failed transition; whether it was one in a row too many."""
        self._failures[cell] += 1
        return self._failures[cell] >= STRIKES

    def serve_only(self, cell: CellId) -> None:
        self._serving_only.add(cell)

    def next_in_order(self) -> CellId | None:
        """The core, then the first eligible satellite behind all that are in training.

        One that comes back from the dead behind others waits, so that those in training remain
        a prefix of the cells that were there.
        """
        if self.core is not CellState.TRAINING:
            return CORE if self.core is CellState.SERVING else None
        last = self.last_joined()
        behind = (cell for cell in self.all_home() if last is None or cell > last)
        return next(behind, None)

    def all_home(self) -> tuple[CellId, ...]:
        """Cells that could enter now; none without the core, which holds the weights."""
        if self.core not in (CellState.TRAINING, CellState.SERVING):
            return ()
        return tuple(
            cell
            for cell in self
            if self._states[cell] is CellState.SERVING and cell not in self._serving_only
        )

    def last_joined(self) -> CellId | None:
        """The highest cell that is in training or on its way there."""
        behind = reversed(range(len(self._states)))
        return next((CellId(cell) for cell in behind if self._states[cell] in _JOINED), None)
