"""A journal that somebody reads while another writes it."""

import os

import pytest

from gyre.journal.journal import Durability, Header, Journal, JournalFollower
from gyre.scheduler.messages import RunStarted, StepTaken
from gyre.types.errors import ConfigError, LogDamaged

KINDS = (RunStarted, StepTaken)
HEADER = Header(run="r", seed=1, started_at=0.0, shape={})


@pytest.fixture
def path(tmp_path):
    return tmp_path / "journal"


def created(path):
    return Journal.create(path, HEADER, kinds=KINDS, durability=Durability.PROCESS)


@pytest.fixture
def journal(path):
    with created(path) as made:
        yield made


def steps(entries):
    return [entry.event.step for entry in entries]


def taken(journal, *numbers):
    for number in numbers:
        journal.append(StepTaken(step=number), now=float(number))
    journal.commit()


def test_entries_come_once_in_order(path, journal):
    following = JournalFollower(path, kinds=KINDS)
    taken(journal, 0, 1)
    first = following.news()
    nothing = following.news()
    taken(journal, 2)

    assert ([0, 1], [], [2]) == (steps(first), nothing, steps(following.news()))
    assert (HEADER, 0) == (following.header, following.generation)


def test_a_journal_without_a_header_is_waited_for(path):
    path.write_bytes(b"GYRE")
    following = JournalFollower(path, kinds=KINDS)

    assert ([], None) == (following.news(), following.header)

    path.unlink()
    with created(path) as journal:
        taken(journal, 0)

        assert [0] == steps(following.news())


def test_what_is_half_written_waits_at_every_byte(path, journal):
    taken(journal, 0)
    whole = path.stat().st_size
    taken(journal, 1)
    data = path.read_bytes()
    for cut in range(whole, len(data)):
        path.write_bytes(data[:cut])
        following = JournalFollower(path, kinds=KINDS)
        before, torn_bytes = following.news(), following.torn_bytes
        path.write_bytes(data)

        assert ([0], cut - whole, [1]) == (steps(before), torn_bytes, steps(following.news()))
        assert 0 == following.generation


def test_what_the_writer_took_back_was_never_told(path, journal):
    """A disk that fills up leaves whole frames of a commit there for a moment."""
    following = JournalFollower(path, kinds=KINDS)
    taken(journal, 0)
    sound = path.stat().st_size
    taken(journal, 1, 2)

    assert [0, 1, 2] == steps(following.news())

    os.truncate(path, sound)

    assert ([0], 1) == (steps(following.news()), following.generation)


def test_what_was_written_in_its_place_is_told(path):
    following = JournalFollower(path, kinds=KINDS)
    with created(path) as journal:
        taken(journal, 0)
        sound = path.stat().st_size
        taken(journal, 1)
    told = steps(following.news())
    other = path.read_bytes()[sound:]
    os.truncate(path, sound)
    again, _ = Journal.resume(path, at=1.0, kinds=KINDS, durability=Durability.PROCESS)
    with again:
        taken(again, 7)

    assert path.read_bytes()[sound : sound + len(other)] != other
    assert ([0, 1], [0, 7]) == (told, steps(only_steps(following.news())))
    assert 1 == following.generation


def test_a_resumed_journal_goes_on(path):
    following = JournalFollower(path, kinds=KINDS)
    with created(path) as journal:
        taken(journal, 0)
    following.news()
    again, _ = Journal.resume(path, at=1.0, kinds=KINDS, durability=Durability.PROCESS)
    with again:
        taken(again, 1)

    assert [1] == steps(only_steps(following.news()))
    assert 0 == following.generation


def only_steps(entries):
    return [entry for entry in entries if isinstance(entry.event, StepTaken)]


def test_damage_and_absence_have_names(path, journal, tmp_path):
    taken(journal, 0, 1)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    damaged = tmp_path / "damaged"
    damaged.write_bytes(data)
    with pytest.raises(LogDamaged, match="damaged at byte"):
        JournalFollower(damaged, kinds=KINDS).news()
    with pytest.raises(ConfigError, match="nowhere: no journal that can be read"):
        JournalFollower(tmp_path / "nowhere", kinds=KINDS).news()
