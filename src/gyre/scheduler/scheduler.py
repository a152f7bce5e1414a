"""The scheduler: events go in with the time, commands come out, and nothing else happens.

Rule 1: the same events at the same times give the same commands.
Rule 2: `handle` applies the event, then lets every rule that may now act do so, in a fixed order:
burst, cells, rescue, seats.
Rule 3: an event that cannot be is refused with InternalError and changes nothing.
"""

from typing import assert_never

from gyre.scheduler import policies
from gyre.scheduler.cells import CellState
from gyre.scheduler.config import SchedulerConfig
from gyre.scheduler.executions import ExecutionTable
from gyre.scheduler.fleet import Fleet, TransitionPolicy
from gyre.scheduler.groups import Burst, OutstandingGroup, Phase, Staleness
from gyre.scheduler.messages import (
    CallsReported,
    CellDied,
    CellRecovered,
    CellServing,
    CellTraining,
    Command,
    EngineLost,
    EngineReturned,
    EvaluationEnded,
    EvaluationRequested,
    Event,
    ExecutionClosed,
    ExecutionTerminated,
    GroupAdmitted,
    GroupAssigned,
    LeaveReason,
    OpenBatch,
    Publish,
    Published,
    RunStarted,
    StepTaken,
    StopReason,
    StopRun,
    TimerFired,
    TransitionFailed,
)
from gyre.types.errors import InternalError
from gyre.types.ids import CORE, GroupId


class Scheduler:
    """Decides for one run: `handle` takes an event and the time, and returns commands."""

    def __init__(self, shape: SchedulerConfig) -> None:
        self.shape = shape
        self._fleet = Fleet(shape)
        self.burst = Burst(shape.groups_per_batch, shape.steps_per_burst)
        self._rollout = ExecutionTable(shape, self.burst, self._fleet.engines)
        self._switching = TransitionPolicy(shape, self.burst, self._fleet, self._rollout)
        self.cells, self.engines = self._fleet.cells, self._fleet.engines
        self.counters, self.ledger = self._rollout.counters, self._rollout.ledger
        self.staleness = Staleness()
        self.stopped: StopReason | None = None
        self._started = False
        self._now: float | None = None

    @property
    def num_evaluations(self) -> int:
        """Held-out evaluations that run."""
        return self._rollout.evaluations.num_running

    @property
    def waterlevel(self) -> int:
        """w as the rules see it: evaluations, held slots and standing groups included."""
        return self._rollout.waterlevel

    def is_home(self, engine: int) -> bool:
        """It is one of those that serve, or do so as soon as they have the right weights."""
        return self._fleet.is_home(engine)

    @property
    def supply_since(self) -> float | None:
        """Since when supply has held without interruption; None while it does not (SPEC 2.1)."""
        return self._switching.supply_since

    def group(self, number: GroupId) -> OutstandingGroup | None:
        """An outstanding group, for reading; nothing is kept of a consumed one."""
        return self._rollout.group(number)

    def handle(self, event: Event, now: float) -> list[Command]:
        if self.stopped is not None:
            return []
        if self._now is not None and now < self._now:
            raise InternalError(f"time went back from {self._now} to {now}")
        if not self._started and not isinstance(event, RunStarted):
            raise InternalError(f"{type(event).__name__} came before the run started")
        commands = self._apply(event)
        self._now = now
        if self.stopped is None:
            commands += self._decide(now)
        return commands

    def wake_at(self, now: float) -> float | None:
        """When to send TimerFired, if nothing happens before."""
        if self.stopped is not None:
            return None
        return self._switching.wake_at(now)

    def _apply(self, event: Event) -> list[Command]:
        match event:
            case RunStarted():
                return self._start()
            case GroupAdmitted():
                self._rollout.admitted(event)
            case ExecutionTerminated():
                self._rollout.terminated(event)
            case ExecutionClosed():
                return self._close(event)
            case GroupAssigned():
                self._assign(event)
            case StepTaken():
                return self._step(event)
            case Published():
                return self._published(event)
            case EvaluationRequested():
                if self.shape.evaluation_slots == 0:
                    raise InternalError("an evaluation was requested of a run without slots for it")
                self._rollout.evaluations.request(event.evaluation)
            case EvaluationEnded():
                if self._rollout.evaluations.end(event.evaluation):
                    self.engines.unseat(event.evaluation)
            case CallsReported():
                self._fleet.reported(event)
            case TimerFired():
                pass
            case _:
                return self._apply_to_fleet(event)
        return []

    def _apply_to_fleet(
        self,
        event: CellTraining
        | CellServing
        | TransitionFailed
        | EngineLost
        | EngineReturned
        | CellDied
        | CellRecovered,
    ) -> list[Command]:
        switching = self.cells.num_switching
        commands: list[Command] = []
        match event:
            case CellTraining():
                self._fleet.entered(event)
            case CellServing():
                self._fleet.came_home(event, waits=self.burst.phase is Phase.RETURNING)
            case TransitionFailed():
                answer = self._fleet.failed(event)
                if answer is None:
                    return [self._stop(StopReason.CORE_FAILED)]
                commands = answer
            case EngineLost():
                return self._fleet.lost(event, published=self.burst.published)
            case EngineReturned():
                self._check_version(event.version)
                return self._fleet.returned(event, published=self.burst.published)
            case CellDied():
                commands = self._fleet.died(event)
            case CellRecovered():
                self._check_version(event.version)
                return self._recovered(event)
            case _:
                assert_never(event)
        if self.cells.num_switching < switching:
            self._switching.restart_dwell()
        return commands

    def _decide(self, now: float) -> list[Command]:
        commands = self._advance()
        commands += self._switching.decide(now)
        away = self._fleet.num_away
        self.engines.be_generous(away == 0)
        return commands + list(self._rollout.settle(cells_away=away))

    # Groups

    def _start(self) -> list[Command]:
        if self._started:
            return []
        self._started = True
        batch, burst = self.shape.groups_per_batch, self.shape.burst_groups
        return self._admit(self.shape.dispatch.at_start(batch=batch, burst=burst))

    def _admit(self, wanted: int) -> list[Command]:
        commands: list[Command] = []
        for _ in range(self._rollout.num_allowed(wanted)):
            commands.append(self._rollout.admit())
            self.staleness.admit(version=self.burst.published, trainer_version=self.burst.version)
        return commands

    def _close(self, event: ExecutionClosed) -> list[Command]:
        group = self._rollout.closed(event)
        if group is None:
            return []
        commands = list(self._rollout.cancels(group))
        if not group.is_ready:
            return commands
        self.burst.ready += 1
        commands.append(self._rollout.offer(group))
        if policies.too_many_void(
            void=self.ledger.recent_void, window=self.ledger.window, max_void=self.shape.max_void
        ):
            return [*commands, self._stop(StopReason.TOO_MANY_VOID)]
        return commands + self._admit(self.shape.dispatch.at_ready())

    def _assign(self, event: GroupAssigned) -> None:
        group = self._rollout.group(event.group)
        if group is None or group.is_assigned:
            return
        if not self.burst.batch_open or event.step != self.burst.step:
            raise InternalError(f"group {event.group} was pulled for step {event.step}, not open")
        if not group.is_ready:
            raise InternalError(f"group {event.group} was pulled before it was ready")
        if self.burst.needed == 0:
            raise InternalError(f"group {event.group} was pulled into a batch that is full")
        self.burst.assign(group)

    # The burst

    def _advance(self) -> list[Command]:
        if self.burst.phase is Phase.RETURNING:
            return self._publish()
        if self.burst.phase is Phase.TRAINING and self.cells.core is CellState.TRAINING:
            return self._open_batch()
        return []

    def _open_batch(self) -> list[Command]:
        is_supplied = self.shape.placement.streaming or self.burst.ready >= self.burst.groups_left
        if self.burst.batch_open or not (is_supplied or self.burst.has_begun):
            return []
        self.burst.batch_open = True
        self._switching.restart_dwell()
        return [OpenBatch(step=self.burst.step)]

    def _step(self, event: StepTaken) -> list[Command]:
        if event.step < self.burst.step:
            return []
        if event.step > self.burst.step or not self.burst.batch_open:
            raise InternalError(f"step {event.step} was taken, and its batch is not open")
        if self.burst.needed:
            raise InternalError(f"step {event.step} lacks {self.burst.needed} groups")
        consumed = self.burst.close_batch()
        for group in consumed:
            self._rollout.consume(group)
        self.staleness.update(
            trainer_version=event.step, consumed=[group.version for group in consumed]
        )
        self._switching.restart_dwell()
        if not policies.ends_burst(
            version=self.burst.version, steps_per_burst=self.shape.steps_per_burst
        ):
            return []
        self.burst.phase = Phase.RETURNING
        if not self.shape.placement.cells_serve:
            return []
        return [
            self._fleet.leave(cell, LeaveReason.AFTER_BURST)
            for cell in self.cells.satellites
            if policies.goes_home(self.cells.state(cell))
        ]

    def _publish(self) -> list[Command]:
        """Publishes when all satellites are home and the core can."""
        if self.shape.placement.cells_serve and self.cells.satellites_out():
            return []
        if self.cells.core in (CellState.DEAD, CellState.ENTERING, CellState.LEAVING):
            return []
        self.burst.phase = Phase.PUBLISHING
        return [Publish(version=self.burst.version, engines=self._fleet.publish_to())]

    def _published(self, event: Published) -> list[Command]:
        self._check_version(event.version)
        if event.version != self.burst.version or self.burst.phase is not Phase.PUBLISHING:
            return []
        commands = self._fleet.published(event.version, silent=event.silent)
        self.burst.published = event.version
        self.staleness.publish(ready=self.burst.ready)
        self.burst.phase = Phase.TRAINING
        if event.version == self.shape.steps:
            return [*commands, self._stop(StopReason.FINISHED)]
        wanted = self.shape.dispatch.at_publication(burst=self.shape.burst_groups)
        stays = self._switching.core_stays(self._rollout.num_allowed(wanted))
        if self.cells.core is CellState.TRAINING and not stays:
            commands.append(self._fleet.leave(CORE, LeaveReason.AFTER_PUBLICATION))
        return commands + self._admit(wanted)

    def _recovered(self, event: CellRecovered) -> list[Command]:
        was_publishing = self.burst.phase is Phase.PUBLISHING and self.cells.core is CellState.DEAD
        commands = self._fleet.recovered(event, published=self.burst.published)
        if event.cell == CORE and was_publishing:
            # It died while it published, and how far it came is unknown.
            commands += self._publish()
        return commands

    def _check_version(self, version: int) -> None:
        if version > self.burst.version:
            raise InternalError(f"version {version} was heard of before it was trained")

    def _stop(self, reason: StopReason) -> Command:
        self.stopped = reason
        return StopRun(reason=reason)
