"""When a cell enters training, when the core stays there, and when one is called back.

Rule 1: the dwell timer watches supply only, and restarts after each transition and at each batch
start (SPEC 2.1).
Rule 2: no cell enters while another switches, nor after the last update of a burst.
"""

from gyre.scheduler import rules
from gyre.scheduler.cells import CellState
from gyre.scheduler.config import SchedulerConfig
from gyre.scheduler.executions import ExecutionTable
from gyre.scheduler.fleet import Fleet
from gyre.scheduler.groups import Burst, Phase
from gyre.scheduler.messages import Command, EnterTraining, LeaveReason
from gyre.types.ids import CellId


class TransitionPolicy:
    """Decides when cells enter and leave training, by the dwell timer and the rescue timer."""

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
        return placement.keeps_core and rules.may_stay(
            ready=self._burst.ready,
            needed=self._shape.supply_groups if placement.streaming else self._burst.groups_left,
            waterlevel=self._rollout.waterlevel,
            dispatching=num_groups * self._shape.group_size,
            capacity=self._fleet.engines.capacity,
        )

    def _watch_supply(self, now: float) -> None:
        supply = rules.supply(ready=self._burst.ready, needed=self._burst.needed)
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
        return rules.has_dwelt(since=self.supply_since, dwell_s=self._shape.supply_dwell_s, now=now)

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
        return self._shape.placement.pauses or rules.may_enter_training(
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
        is_due = rules.has_dwelt(since=self._dark_since, dwell_s=self._shape.rescue_s, now=now)
        cell = self._fleet.cells.last_joined() if is_due else None
        if cell is None or self._fleet.cells.num_leaving:
            return []
        self._dark_since = now
        return [self._fleet.leave(cell, LeaveReason.RESCUE)]
