"""Both ledgers of a journal balance, agree with the scheduler's, and show what cannot be."""

from dataclasses import replace

import pytest
from tests.observability.support.journals import SMALL, journal, simulated, told

from gyre.journal.journal import read
from gyre.observability.ledgers import ExecutionLedger, GroupLedger, ledgers, ledgers_of
from gyre.observability.terminal.summary import summary
from gyre.scheduler.messages import ExecutionClosed, GroupAdmitted, GroupAssigned, StepTaken
from gyre.scheduler.policies import Boundary
from gyre.scheduler.replay import replay
from gyre.types.ids import GroupId
from gyre.types.outcomes import Outcome
from gyre.types.run_events import RewardGiven

SHAPE = replace(
    SMALL.shape,
    groups_per_batch=1,
    executions_per_group=2,
    dispatch=Boundary(extra_dispatch=0.0),
)


@pytest.fixture(scope="module")
def events():
    _, found = simulated(SMALL)
    return found


def test_a_whole_run_leaves_nothing_open(events, tmp_path):
    found = ledgers(journal(tmp_path / "journal", SMALL, told(events)))

    assert found.balance
    assert 12 * 8 == found.groups.admitted == found.groups.trained + found.groups.void
    assert 12 * 64 == found.executions.dispatched
    assert 0 == found.executions.open == found.groups.outstanding


def test_they_are_the_schedulers_own_wherever_a_journal_ends(events):
    for end in range(0, len(events), 97):
        scheduler = replay(SMALL.shape, events[:end]).scheduler
        found = ledgers_of(SMALL.shape, [event for _, event in events[:end]])

        assert found.balance
        assert (scheduler.ledger.trained, scheduler.ledger.void) == (
            found.groups.trained,
            found.groups.void,
        )
        assert scheduler.ledger.closed == found.executions.dispatched - found.executions.open


def group(number, *outcomes, step):
    """A group's whole life; its outcomes by member."""
    return [
        GroupAdmitted(group=GroupId(number)),
        *(
            ExecutionClosed(group=GroupId(number), member=member, outcome=outcome)
            for member, outcome in enumerate(outcomes)
        ),
        GroupAssigned(group=GroupId(number), step=step),
        StepTaken(step=step),
    ]


def test_every_end_of_a_group_has_its_column():
    facts = [
        *group(0, Outcome.VALID, Outcome.PLACEHOLDER, step=0),
        *group(1, Outcome.VALID, Outcome.EXCLUDED, step=1),
        GroupAdmitted(group=GroupId(2)),
        ExecutionClosed(group=GroupId(2), member=1, outcome=Outcome.SURPLUS),
    ]
    found = ledgers_of(SHAPE, facts)

    assert GroupLedger(admitted=3, trained=1, void=1, outstanding=1) == found.groups
    assert (
        ExecutionLedger(dispatched=6, valid=2, excluded=1, placeholder=1, surplus=1, open=1)
        == found.executions
    )
    assert found.balance


def test_facts_that_come_twice_count_once():
    facts = group(0, Outcome.VALID, Outcome.VALID, step=0)

    assert ledgers_of(SHAPE, facts) == ledgers_of(SHAPE, [*facts, *facts])


WHOLE = group(0, Outcome.VALID, Outcome.VALID, step=0)
CLOSED = ExecutionClosed(group=GroupId(0), member=0, outcome=Outcome.EXCLUDED)
GIVEN = RewardGiven(group=0, member=0, execution="e", score=0.0, ran_s=None)


@pytest.mark.parametrize(
    ("facts", "fault"),
    [
        ([*WHOLE, GroupAssigned(group=GroupId(0), step=1)], "group 0 went into step 0 and into"),
        ([*WHOLE, CLOSED], "outcome of execution 0 of group 0 was"),
        ([WHOLE[0], GIVEN, CLOSED], "closed as excluded with reward 0"),
        ([*WHOLE[:2], *WHOLE[3:]], "group 0 went into step 0 with 1 open"),
        ([*WHOLE[:3], WHOLE[4]], "step 0 had 0 groups, not 1"),
        ([*WHOLE, StepTaken(step=2)], "step 2 was taken after 1 steps"),
        (WHOLE[1:], "execution 0 of group 0 closed, and was never there"),
    ],
)
def test_what_no_run_can_mean_is_named(facts, fault):
    found = ledgers_of(SHAPE, facts)

    assert not found.balance
    assert fault in " ".join(found.faults)


def test_a_journal_without_a_header_has_no_ledgers(tmp_path):
    path = tmp_path / "journal"
    path.write_bytes(b"")

    assert ledgers(read(path, kinds=())) is None


def test_the_page_of_a_run_says_that_they_do_not_balance(events, tmp_path):
    """I7: a reward where there is none."""
    facts = [
        (now, replace(fact, score=0.0)) if isinstance(fact, RewardGiven) else (now, fact)
        for now, fact in told(events)
    ]
    sound = summary(journal(tmp_path / "sound", SMALL, told(events)))
    page = summary(journal(tmp_path / "journal", SMALL, facts))

    assert "do not balance" not in sound
    assert "the ledgers do not balance: execution" in page
    assert "such faults more" in page
