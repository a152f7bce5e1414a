"""The state machine of an execution: any order of facts, and what must hold after each."""

import math

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from gyre.rollout.execution import DeadlineTimes, Execution, ExecutionStage
from gyre.scheduler import messages
from gyre.types import outcomes
from gyre.types.errors import ConfigError, InternalError
from gyre.types.outcomes import (
    Assessed,
    Assessment,
    Closed,
    Ending,
    Launched,
    Outcome,
    Prepared,
    State,
    Status,
    StepAssessed,
    StepEnded,
    StepStarted,
    Terminated,
)

STATE = State(folder="/frozen", reference="abc")
SCORES = [None, 0.0, 0.5]


def assessment(score, *, attempt=1, reference="abc"):
    return Assessment(
        status=Status.UNRESOLVED if score is None else Status.VALID,
        score=score,
        reason=None,
        reference=reference,
        evaluator="e",
        attempt=attempt,
    )


def started(step):
    return StepStarted(step=step, monotonic_s=1.0, boot="b")


def ended(step):
    return StepEnded(step=step, ending=Ending.COMPLETED, reason="", elapsed_s=1.0, state=STATE)


def terminated(ending, state):
    return Terminated(ending=ending, reason="", elapsed_s=None, state=state)


assessments = st.builds(
    lambda score, attempt, reference: assessment(score, attempt=attempt, reference=reference),
    st.sampled_from(SCORES),
    st.integers(1, 3),
    st.sampled_from(["abc", "other"]),
)
facts = st.one_of(
    st.just(Prepared(mark="m")),
    st.just(Launched(monotonic_s=1.0, boot="b")),
    st.builds(terminated, st.sampled_from(Ending), st.sampled_from([None, STATE])),
    st.builds(started, st.integers(0, 2)),
    st.builds(ended, st.integers(0, 2)),
    st.builds(lambda one: Assessed(assessment=one), assessments),
    st.builds(
        lambda step, one, is_enough: StepAssessed(step=step, assessment=one, is_enough=is_enough),
        st.integers(0, 2),
        assessments,
        st.booleans(),
    ),
    st.builds(
        lambda outcome, score: Closed(outcome=outcome, score=score, reason=None),
        st.sampled_from(Outcome),
        st.sampled_from(SCORES),
    ),
)


def last(scores):
    return scores[max(scores)]


def seen(execution):
    return (
        execution.stage,
        execution.prepared,
        execution.launched,
        execution.started,
        execution.steps,
        execution.scores,
        execution.terminated,
        execution.assessments,
        execution.closed,
    )


class AnyOrder(RuleBasedStateMachine):
    """Facts come in any order; those that are taken make a life that can be told."""

    def __init__(self):
        super().__init__()
        self.execution = Execution("e1", "t", worth=last)
        self.taken = []

    @rule(fact=facts)
    def hear(self, fact):
        before = seen(self.execution)
        try:
            self.execution.apply(fact)
        except InternalError:
            assert before == seen(self.execution)
        else:
            self.taken.append(fact)
            assert before[0] <= self.execution.stage

    @rule()
    def read_back(self):
        assert seen(self.execution) == seen(Execution("e1", "t", self.taken, worth=last))

    @invariant()
    def every_move_is_made_once(self):
        """SPEC 1.2."""
        for kind in (Prepared, Launched, Terminated, Closed):
            assert sum(isinstance(fact, kind) for fact in self.taken) <= 1

    @invariant()
    def what_never_started_is_never_assessed(self):
        end = self.execution.terminated
        if end is not None and end.ending is Ending.NEVER_STARTED:
            assert () == self.execution.assessments

    @invariant()
    def assessments_are_of_the_state_that_is_kept_and_numbered(self):
        """SPEC 6.2."""
        for made in [self.execution.assessments, *map(self.judged, range(3))]:
            for number, one in enumerate(made, start=1):
                assert (STATE.reference, number) == (one.reference, one.attempt)

    def judged(self, step):
        return [
            fact.assessment
            for fact in self.taken
            if isinstance(fact, StepAssessed) and fact.step == step
        ]

    @invariant()
    def a_step_starts_behind_one_that_was_enough(self):
        """One after the other, each once, and none behind the end."""
        moves = [
            (type(fact), fact.step)
            for fact in self.taken
            if isinstance(fact, StepStarted | StepEnded)
        ]
        assert moves == sorted(moves, key=lambda move: 2 * move[1] + (move[0] is StepEnded))
        assert len(moves) == len(set(moves))
        for fact in self.taken:
            if isinstance(fact, StepStarted):
                last = [
                    one
                    for one in self.taken
                    if isinstance(one, StepAssessed) and one.step == fact.step - 1
                ][-1]
                assert (True, True) == (last.assessment.score is not None, last.is_enough)

    @invariant()
    def a_score_was_said_of_the_state_that_is_kept(self):
        closed = self.execution.closed
        if closed is not None and closed.score is not None:
            assert Outcome.VALID is closed.outcome
            last = self.execution.assessments[-1]
            assert (closed.score, STATE.reference) == (last.score, last.reference)

    @invariant()
    def a_valid_assessment_is_not_thrown_away(self):
        closed = self.execution.closed
        valid = [one for one in self.execution.assessments if one.score is not None]
        assert len(valid) <= 1
        if closed is not None and valid and self.execution.state is not None:
            assert closed.outcome in {Outcome.VALID, Outcome.SURPLUS}

    @invariant()
    def a_placeholder_left_nothing(self):
        closed = self.execution.closed
        if closed is not None and closed.outcome is Outcome.PLACEHOLDER:
            assert self.execution.terminated.state is None


TestAnyOrder = AnyOrder.TestCase


def test_what_has_ended_a_step_did_start():
    execution = Execution("e1", "t")
    for fact in (Prepared(mark="m"), Launched(monotonic_s=1.0, boot="b"), ended(0)):
        execution.apply(fact)

    with pytest.raises(InternalError):
        execution.apply(terminated(Ending.NEVER_STARTED, None))


def test_a_whole_life():
    lived = [
        Prepared(mark="m"),
        Launched(monotonic_s=1.0, boot="b"),
        terminated(Ending.CRASHED, STATE),
        Assessed(assessment=assessment(None)),
        Assessed(assessment=assessment(0.0, attempt=2)),
        Closed(outcome=Outcome.VALID, score=0.0, reason=None),
    ]
    execution = Execution("e1", "t", lived)

    assert ExecutionStage.CLOSED is execution.stage
    assert (0.0, True) == (execution.record.closed.score, execution.record.was_launched)


def test_a_life_in_steps_is_worth_what_they_come_to():
    lived = [
        Prepared(mark="m"),
        Launched(monotonic_s=1.0, boot="b"),
        ended(0),
        StepAssessed(step=0, assessment=assessment(0.5), is_enough=True),
        started(1),
        terminated(Ending.COMPLETED, STATE),
        Assessed(assessment=assessment(0.0)),
    ]
    closed = Closed(outcome=Outcome.VALID, score=0.25, reason=None)
    whole = Execution("e1", "t", [*lived, closed], worth=lambda scores: sum(scores.values()) / 2)

    assert (0.25, {0: 0.5, 1: 0.0}) == (whole.record.closed.score, whole.scores)
    with pytest.raises(InternalError):
        Execution("e1", "t", [*lived, closed])


def test_what_is_cancelled_before_launch_was_not_launched():
    """SPEC 1.2."""
    execution = Execution("e1", "t", [terminated(Ending.CANCELLED, None)])

    assert not execution.record.was_launched
    with pytest.raises(InternalError):
        execution.apply(Launched(monotonic_s=1.0, boot="b"))


def test_there_is_no_outcome_before_termination():
    with pytest.raises(InternalError):
        _ = Execution("e1", "t", [Prepared(mark="m")]).record


@pytest.mark.parametrize(("score", "status"), [(None, Status.VALID), (0.0, Status.UNRESOLVED)])
def test_a_score_and_its_absence_cannot_be_confused(score, status):
    """SPEC 6.3."""
    with pytest.raises(InternalError):
        Assessment(
            status=status, score=score, reason=None, reference="abc", evaluator="e", attempt=1
        )


def test_deadlines_count_from_launch_and_do_not_charge_what_was_held():
    """SPEC 6.1."""
    deadlines = DeadlineTimes(agent_s=10.0, overall_s=15.0)
    first = deadlines.agent_at(100.0), deadlines.overall_at(100.0)
    deadlines.hold(4.0)
    deadlines.hold(3.0)
    deadlines.hold(math.inf)
    deadlines.hold(math.nan)

    assert (110.0, 115.0) == first
    assert (114.0, 119.0) == (deadlines.agent_at(100.0), deadlines.overall_at(100.0))


@pytest.mark.parametrize(
    ("agent_s", "overall_s"),
    [(0, 1), (-1, 1), (2, 1), (1, 1), (1, math.inf), (math.nan, 1), (1, math.nan)],
)
def test_deadlines_are_finite_and_in_order(agent_s, overall_s):
    with pytest.raises(ConfigError, match="finite deadlines"):
        DeadlineTimes(agent_s=agent_s, overall_s=overall_s)


@pytest.mark.parametrize("name", ["Ending", "Outcome"])
def test_the_scheduler_hears_the_same_words(name):
    here, there = getattr(outcomes, name), getattr(messages, name)

    assert {one.name: one.value for one in here} == {one.name: one.value for one in there}
