"""Events through the scheduler with few and with many executions alive, on 512 engines."""

from collections import deque
from collections.abc import Callable
from typing import Any

from benchmarks.micro.cases import measure

from gyre.scheduler.config import SchedulerConfig
from gyre.scheduler.messages import (
    AdmitGroup,
    Command,
    ExecutionClosed,
    ExecutionTerminated,
    GroupAdmitted,
    GroupAssigned,
    LaunchExecution,
    OfferGroup,
    OpenBatch,
    Publish,
    Published,
    RunStarted,
    StepTaken,
)
from gyre.scheduler.policies import Async, Continuous
from gyre.scheduler.scheduler import Scheduler
from gyre.types.ids import GroupId
from gyre.types.outcomes import Ending, Outcome

ENGINES = 512
SIZE = 8
BATCH = 32
EVENTS = 2_000
LIVE = (1_024, 16_384, 102_400)


def shape_of(live: int, engines: int) -> SchedulerConfig:
    """A run that keeps so many executions alive, as many on each engine."""
    return SchedulerConfig(
        groups_per_batch=BATCH,
        executions_per_group=SIZE,
        num_cells=1,
        cell_capacity=1,
        standalone_capacities=(live // engines,) * engines,
        dispatch=Continuous(depth=live // SIZE),
        placement=Async(),
    )


class Host:
    """Answers every command at once, and ends the oldest execution when there is none."""

    def __init__(self, shape: SchedulerConfig) -> None:
        self._scheduler = Scheduler(shape)
        self._events: deque[Any] = deque([RunStarted()])
        self._running: deque[LaunchExecution] = deque()
        self._offered: deque[GroupId] = deque()
        self._step = 0
        self._pulled = 0
        while self._events:
            self._turn()

    def run(self) -> None:
        for _ in range(EVENTS):
            if not self._events:
                self._end(self._running.popleft())
            self._turn()

    def _turn(self) -> None:
        for command in self._scheduler.handle(self._events.popleft(), 0.0):
            self._obey(command)
        while self._offered and self._pulled < BATCH:
            self._pulled += 1
            self._events.append(GroupAssigned(group=self._offered.popleft(), step=self._step))
            if self._pulled == BATCH:
                self._events.append(StepTaken(step=self._step))

    def _end(self, one: LaunchExecution) -> None:
        self._events.append(
            ExecutionTerminated(group=one.group, member=one.member, ending=Ending.COMPLETED)
        )
        self._events.append(
            ExecutionClosed(group=one.group, member=one.member, outcome=Outcome.VALID)
        )

    def _obey(self, command: Command) -> None:
        match command:
            case AdmitGroup(group=group):
                self._events.append(GroupAdmitted(group=group))
            case LaunchExecution():
                self._running.append(command)
            case OfferGroup(group=group):
                self._offered.append(group)
            case OpenBatch(step=step):
                self._step, self._pulled = step, 0
            case Publish(version=version):
                self._events.append(Published(version=version))
            case _:
                pass


def main() -> None:
    cases: dict[str, Callable[[], object]] = {
        f"live-{live}": Host(shape_of(live, ENGINES)).run for live in LIVE
    }
    measure(
        "scheduler",
        cases,
        calls=dict.fromkeys(cases, 3),
        settings={"engines": ENGINES, "group": SIZE, "batch": BATCH, "events_per_call": EVENTS},
    )


if __name__ == "__main__":
    main()
