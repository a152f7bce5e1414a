"""Hypothesis drives the world of the scheduler: anything may happen, in any order."""

import random

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from tests.scheduler.support.world import World

from gyre.scheduler.config import SchedulerConfig
from gyre.scheduler.messages import (
    CallsReported,
    CellServing,
    CellTraining,
    ExecutionClosed,
    ExecutionTerminated,
    GroupAdmitted,
    GroupAssigned,
    Published,
    StepTaken,
    TransitionFailed,
)
from gyre.scheduler.policies import (
    Async,
    Boundary,
    Colocate,
    Continuous,
    Elastic,
    LongestFirst,
    OldestFirst,
    Resumable,
)
from gyre.scheduler.scheduler import Scheduler
from gyre.types.errors import InternalError
from gyre.types.outcomes import Ending, Outcome

SAID_ONCE = (
    GroupAdmitted,
    ExecutionTerminated,
    ExecutionClosed,
    GroupAssigned,
    StepTaken,
    Published,
    CellTraining,
    CellServing,
    TransitionFailed,
)
"""Events that name what they are about so well that a second one says nothing."""

NUMBERS = st.integers(0, 1000)


@st.composite
def shapes(draw):
    placement = draw(st.sampled_from([Elastic, Elastic, Async, Colocate, Resumable]))
    batch = draw(st.integers(1, 3))
    size = draw(st.integers(2, 3))
    surplus = draw(st.sampled_from([0, 0, 1]))
    num_cells = draw(st.integers(1, 4))
    capacity = draw(st.integers(1, 4))
    standalone = draw(st.lists(st.integers(1, 4), max_size=2))
    if placement is Async and not standalone:
        standalone = [2]
    burst = draw(st.integers(1, 3))
    dispatch = Boundary(extra_dispatch=draw(st.integers(0, 2 * batch)) / batch)
    room = (sum(standalone) + (num_cells - 1) * capacity) // (size + surplus)
    most = room if placement is Elastic else 4
    if placement is Resumable or (placement is not Colocate and most and draw(st.booleans())):
        dispatch = Continuous(depth=draw(st.integers(1, most)))
    return SchedulerConfig(
        groups_per_batch=batch,
        executions_per_group=size,
        surplus=surplus,
        num_cells=num_cells,
        cell_capacity=capacity,
        standalone_capacities=tuple(standalone),
        steps_per_burst=burst,
        steps=burst * draw(st.integers(1, 3)),
        dispatch=dispatch,
        placement=placement(streaming=placement is not Resumable and draw(st.booleans())),
        launch_order=draw(st.sampled_from([OldestFirst(), OldestFirst(), LongestFirst()])),
        supply_fraction=draw(st.sampled_from([0.1, 0.5, 1.0])),
        supply_dwell_s=draw(st.sampled_from([0.0, 5.0])),
        min_valid=draw(st.integers(1, 2)),
        max_void=draw(st.sampled_from([0.3, 1.0, 1.0])),
        evaluation_slots=draw(st.integers(0, 2)),
        evaluation_holds_slot=draw(st.booleans()),
        endless_dispatch=draw(st.booleans()),
        overcommit=draw(st.sampled_from([1.0, 1.0, 1.5])),
    )


class SchedulerMachine(RuleBasedStateMachine):
    """The world checks every promise after each event (see `World`); this class chooses events."""

    @initialize(shape=shapes())
    def start(self, shape):
        self.world = World(shape)

    def is_running(self):
        return self.world.stopped is None

    @rule(seed=st.integers(0, 10_000), turns=st.integers(1, 60))
    def let_it_go_on(self, seed, turns):
        self.world.go_on(random.Random(seed).choice, turns)

    @precondition(lambda self: self.is_running() and self.world.admissions)
    @rule(at=NUMBERS, estimate_s=st.none() | st.floats(1, 100))
    def admit(self, at, estimate_s):
        self.world.admit(at, estimate_s)

    @precondition(lambda self: self.is_running() and self.world.running)
    @rule(at=NUMBERS, ending=st.sampled_from(Ending))
    def terminate(self, at, ending):
        self.world.terminate(at, ending)

    @precondition(lambda self: self.is_running() and self.world.queued())
    @rule(at=NUMBERS)
    def cancel(self, at):
        self.world.cancel(at)

    @precondition(lambda self: self.is_running() and self.world.closing)
    @rule(
        at=NUMBERS,
        outcome=st.sampled_from([Outcome.VALID, Outcome.EXCLUDED, Outcome.PLACEHOLDER]),
    )
    def close(self, at, outcome):
        self.world.close(at, outcome)

    @precondition(lambda self: self.is_running() and self.world.transitions)
    @rule(at=NUMBERS, works=st.booleans())
    def finish_transition(self, at, works):
        self.world.finish_transition(at, works)

    @precondition(lambda self: self.is_running() and self.world.publish is not None)
    @rule(silent=st.sets(st.integers(0, 5)))
    def finish_publication(self, silent):
        self.world.finish_publication(silent)

    @precondition(lambda self: self.is_running() and self.world.loads)
    @rule(at=NUMBERS)
    def finish_load(self, at):
        self.world.finish_load(at)

    @precondition(lambda self: self.is_running() and self.world.restarts)
    @rule(at=NUMBERS, is_late=st.booleans())
    def finish_restart(self, at, is_late):
        self.world.finish_restart(at, is_late)

    @precondition(lambda self: self.is_running())
    @rule(cell=st.integers(0, 3), publication_survives=st.booleans())
    def kill(self, cell, publication_survives):
        self.world.kill(cell % self.world.shape.num_cells, publication_survives)

    @precondition(lambda self: self.is_running())
    @rule(at=NUMBERS)
    def lose_an_engine(self, at):
        shape = self.world.shape
        self.world.lose(at % (shape.num_cells + len(shape.standalone_capacities)))

    @precondition(lambda self: self.is_running() and self.world.shape.evaluation_slots)
    @rule()
    def request_evaluation(self):
        self.world.request_evaluation()

    @precondition(lambda self: self.is_running() and self.world.books.evaluations)
    @rule(at=NUMBERS)
    def end_evaluation(self, at):
        self.world.end_evaluation(at)

    @precondition(lambda self: self.is_running())
    @rule(seconds=st.sampled_from([0.0, 0.5, 4.9, 5.0, 59.0, 100.0]))
    def wait(self, seconds):
        self.world.wait(seconds)

    @precondition(lambda self: self.is_running() and self.world.log)
    @rule(at=NUMBERS)
    def say_it_again(self, at):
        """Duplicates and answers that a newer order has overtaken change nothing."""
        said = [event for event, _, _ in self.world.log if isinstance(event, SAID_ONCE)]
        said += self.world.outdated
        owed = [(cell, number) for cell, (_, number) in self.world.transitions.items()]
        said = [
            event
            for event in said
            if (getattr(event, "cell", None), getattr(event, "transition", None)) not in owed
        ]
        if said:
            assert [] == self.world.tell(said[at % len(said)])

    @precondition(lambda self: self.is_running())
    @rule(at=NUMBERS)
    def say_what_cannot_be(self, at):
        """Refused, and nothing has moved: the replay at the end knows nothing of it."""
        books = self.world.books
        groups = len(books.groups)
        events = [
            GroupAdmitted(group=groups),
            ExecutionTerminated(group=groups, member=0, ending=Ending.COMPLETED),
            ExecutionTerminated(group=0, member=99, ending=Ending.COMPLETED),
            GroupAssigned(group=groups, step=books.version),
            StepTaken(step=books.version + 1),
            Published(version=books.version + 1),
            CellTraining(cell=99, transition=0),
            CallsReported(engine=99, calls=1),
        ]
        events += [
            ExecutionClosed(group=group, member=member, outcome=Outcome.VALID)
            for group, member in self.world.running
        ]
        if books.needed():
            events.append(StepTaken(step=books.version))
        event = events[at % len(events)]
        try:
            self.world.scheduler.handle(event, self.world.now)
        except InternalError:
            return
        raise AssertionError(f"{event} was not refused")

    def teardown(self):
        """A benign world ends the run from here, and its log replayed gives the same commands."""
        if not hasattr(self, "world"):
            return
        self.world.finish()
        again = Scheduler(self.world.shape)
        for event, now, commands in self.world.log:
            assert commands == again.handle(event, now)
