"""What is left of the overall budget, whoever looks after the execution and since when."""

from gyre.rollout.deadlines import Deadlines
from gyre.rollout.execution import Execution, steps_of
from gyre.rollout.spec import ExecutionSpec, ProxyTotals
from gyre.types.outcomes import Ending, Launched, Prepared, State, Terminated
from gyre.types.tasks import EvaluationRule, Task

OVERALL_S = 100.0
PREPARED = Prepared(mark="m")
STATE = State(folder="frozen", reference="r")
ENDED = Terminated(ending=Ending.COMPLETED, reason="", elapsed_s=10.0, state=STATE)


class Clock:
    def __init__(self, now=0.0, boot="b"):
        self.time, self.boot = now, boot

    def now(self):
        return self.time


def times(clock, *facts, held_s=0.0, **known):
    """Of a supervisor that begins now."""
    task = Task(id="t", instruction="i", files=None, evaluation=EvaluationRule(argv=("true",)))
    order = ExecutionSpec(
        execution="e",
        task=task,
        url="u",
        harness=("x",),
        variables={},
        agent_s=5.0,
        overall_s=OVERALL_S,
    )
    execution = Execution("e", "t", facts)
    made = Deadlines(
        order,
        execution,
        steps_of(task),
        clock=clock,
        calls=ProxyTotals(held_s=held_s),
        **({"spent_s": None} | known),
    )
    return made, execution


def launched(clock):
    return Launched(monotonic_s=clock.now(), boot=clock.boot)


def test_one_who_launches_it_counts_from_there():
    clock = Clock(40.0)
    found, execution = times(clock, PREPARED, spent_s=5.0)
    before = found.overall_left_s(), found.spent_s()
    clock.time = 50.0
    execution.apply(launched(clock))
    clock.time = 80.0

    assert (OVERALL_S, 0.0) == before
    assert (70.0, 30.0) == (found.overall_left_s(), found.spent_s())


def test_time_in_which_nobody_looked_after_it_is_not_charged():
    """SPEC 6.1, 10: a run may be stopped for longer than its executions may take."""
    clock = Clock(40.0)
    facts = PREPARED, launched(clock), ENDED
    clock.time = 1e6
    found, _ = times(clock, *facts, held_s=3.0, spent_s=12.0)
    at_once = found.overall_left_s()
    clock.time += 20.0

    assert (91.0, 71.0) == (at_once, found.overall_left_s())
    assert 32.0 == found.spent_s()


def test_another_start_of_the_machine_makes_no_difference_to_what_is_spent():
    facts = PREPARED, launched(Clock(1e6)), ENDED
    found, _ = times(Clock(3.0, boot="another"), *facts, spent_s=12.0)

    assert (88.0, 12.0) == (found.overall_left_s(), found.spent_s())


def test_where_nobody_wrote_down_what_is_spent_the_clock_says_it_if_it_is_the_same():
    """And else the budget begins anew, and runs."""
    facts = PREPARED, launched(Clock(40.0)), ENDED
    same, other = Clock(60.0), Clock(3.0, boot="another")
    found = [times(clock, *facts)[0] for clock in (same, other)]
    at_once = [one.overall_left_s() for one in found]
    same.time, other.time = 70.0, 13.0

    assert [80.0, 100.0] == at_once
    assert [70.0, 90.0] == [one.overall_left_s() for one in found]


def test_supervisors_that_are_killed_again_and_again_come_to_an_end():
    clock, spent_s = Clock(40.0), 0.0
    facts = PREPARED, launched(clock), ENDED
    for _ in range(10):
        clock.time += 1e6
        found, _ = times(clock, *facts, spent_s=spent_s)
        clock.time += 10.0
        spent_s = found.spent_s()

    assert 0.0 >= found.overall_left_s()
