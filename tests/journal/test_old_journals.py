"""Journals that earlier versions of Gyre wrote, as they wrote them: they read, and give the run."""

from pathlib import Path

import pytest

from gyre.controller.controller import JOURNAL_EVENTS
from gyre.controller.recovered_state import recover
from gyre.journal.journal import MAJOR, Journal, UnknownEvent, read
from gyre.observability.ledgers import ledgers
from gyre.scheduler.messages import StepTaken, StopReason
from gyre.scheduler.replay import EVENTS, replay, shape_of
from gyre.types.errors import ConfigError

DATA = Path(__file__).parent / "data"
JOURNALS = sorted(DATA.glob("*.journal"))
RESUMED = DATA / "1.0-resumed.journal"
"""A run of four steps under three controllers, the first two of which were killed."""


def test_there_is_a_journal_of_every_major_format():
    assert {str(one) for one in range(1, MAJOR + 1)} <= {one.name[0] for one in JOURNALS}


@pytest.mark.parametrize("path", JOURNALS, ids=lambda path: path.stem)
def test_an_old_journal_reads_without_a_kind_that_is_unknown(path):
    found = read(path, kinds=JOURNAL_EVENTS)

    assert 0 == found.torn_bytes
    assert [] == [one.event for one in found.entries if isinstance(one.event, UnknownEvent)]
    assert found.entries


def test_a_run_of_before_format_1_1_does_not_go_on(tmp_path):
    copy = tmp_path / "journal"
    copy.write_bytes(RESUMED.read_bytes())

    expected = r"found a run of journal format 1\.0, expected 1\.1 or newer"
    with pytest.raises(ConfigError, match=expected):
        Journal.resume(copy, at=1.0, kinds=JOURNAL_EVENTS)
    assert RESUMED.read_bytes() == copy.read_bytes()


def test_the_scheduler_of_today_makes_the_same_run_of_it():
    found = read(RESUMED, kinds=JOURNAL_EVENTS)
    shape, events = shape_of(found.header.shape), found.facts(EVENTS)
    books = ledgers(found)

    assert StopReason.FINISHED is replay(shape, events).scheduler.stopped
    assert [0, 1, 2, 3] == [one.step for _, one in events if isinstance(one, StepTaken)]
    assert (12, 12) == (books.groups.admitted, books.groups.trained)
    assert () == tuple(books.faults)


def test_it_is_recalled_with_all_its_groups_and_scores():
    found = read(RESUMED, kinds=JOURNAL_EVENTS)
    run = recover(shape_of(found.header.shape), found.facts(JOURNAL_EVENTS))
    members = [one for group in run.groups.values() for one in group.members]

    assert (4, 4, 12) == (run.version, run.published, len(run.groups))
    assert 48 == sum(one.score is not None for one in members)
    assert StopReason.FINISHED is run.scheduler.stopped
