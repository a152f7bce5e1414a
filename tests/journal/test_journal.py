"""The run's journal: what is appended comes back, one writes at a time, damage is never silent."""

import errno
import os
import random
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass, fields, replace
from enum import EnumMeta
from math import inf, nan
from pathlib import Path
from typing import get_origin, get_type_hints

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from tests.module_patches import Overridden

from gyre.journal.journal import (
    MAGIC,
    MAJOR,
    MINOR,
    Durability,
    Header,
    Journal,
    Origin,
    Resumed,
    UnknownEvent,
    read,
    write,
)
from gyre.scheduler.messages import (
    CellDied,
    Event,
    ExecutionTerminated,
    GroupAdmitted,
    Published,
    RunStarted,
    TimerFired,
)
from gyre.scheduler.replay import EVENTS
from gyre.storage import framed_file
from gyre.storage.framed_file import framed
from gyre.types.errors import ConfigError, InternalError, LogDamaged, TakenOver
from gyre.types.ids import CellId, EngineId
from gyre.types.outcomes import Ending

HEADER = Header(run="one", seed=3, started_at=1.5, shape={"a": [1, 2]}, notes={"host": "here"})
FACTS = (
    (0.0, RunStarted()),
    (0.1 + 0.2, GroupAdmitted(group=0, estimate_s=None)),
    (7.0, Published(version=2, silent=(EngineId(3), EngineId(1)))),
    (7.0, CellDied(cell=CellId(1))),
)


def written(path, facts=FACTS, header=HEADER):
    write(path, header, facts, kinds=EVENTS)
    return path


@pytest.fixture
def path(tmp_path):
    return written(tmp_path / "journal")


def events(kind):
    """Any event of a kind, by the types of its fields."""
    hints = get_type_hints(kind)
    return st.builds(kind, **{one.name: values(hints[one.name]) for one in fields(kind)})


def values(hint):
    whole = st.integers(0, 2**63 - 1)
    named = {float | None: st.none() | st.floats(allow_nan=False)}
    if hint in named:
        return named[hint]
    if get_origin(hint) is tuple:
        return st.lists(whole, max_size=4).map(tuple)
    return st.sampled_from(hint) if isinstance(hint, EnumMeta) else whole


ANY_EVENT = st.one_of([events(kind) for kind in EVENTS])


def test_what_is_written_is_read(path):
    found = read(path, kinds=EVENTS)

    assert HEADER == found.header
    assert FACTS == tuple((one.now, one.event) for one in found.entries)
    assert [0, 1, 2, 3] == [one.sequence for one in found.entries]
    assert {(0, None)} == {(one.epoch, one.origin) for one in found.entries}
    assert (path.stat().st_size, 0) == (found.sound_bytes, found.torn_bytes)


@pytest.mark.parametrize("kind", EVENTS, ids=lambda kind: kind.__name__)
def test_every_kind_of_event_comes_back_equal(kind, tmp_path_factory):
    @given(st.lists(events(kind), min_size=5))
    @settings(max_examples=8)
    def come_back(many):
        facts = [(1.0, event) for event in many]
        path = written(tmp_path_factory.mktemp("run") / "journal", facts)

        assert facts == read(path, kinds=EVENTS).facts((kind,))

    come_back()


def test_the_kinds_are_all_that_a_scheduler_hears():
    assert set(Event.__args__) == set(EVENTS)


def test_a_torn_tail_is_left_out_at_every_byte_and_said(path):
    """FAULTS 32: whatever was cut, the entries before the cut are there and no others."""
    data = path.read_bytes()
    whole = read(path, kinds=EVENTS)
    ends = []
    for size in range(len(data)):
        path.write_bytes(data[:size])
        found = read(path, kinds=EVENTS)
        assert whole.entries[: len(found.entries)] == found.entries
        assert size == found.sound_bytes + found.torn_bytes
        if found.torn_bytes == 0:
            ends.append((found.header, len(found.entries)))

    assert [(None, 0), (None, 0), *((HEADER, many) for many in range(4))] == ends


def test_damage_in_the_middle_is_reported_never_skipped(path):
    """FAULTS 32: any flipped bit before the last entry is named."""
    data = path.read_bytes()
    rng = random.Random(0)
    last = data.rindex(b"CellDied") - 40
    for _ in range(300):
        damaged = bytearray(data)
        damaged[rng.randrange(last)] ^= 1 << rng.randrange(8)
        path.write_bytes(damaged)
        with pytest.raises(LogDamaged, match="journal: "):
            read(path, kinds=EVENTS)


def test_an_entry_that_is_missing_whole_is_noticed(path):
    data = path.read_bytes()
    sizes = []
    for many in range(1, 5):
        sizes.append(len(written(path.with_name(f"{many}"), FACTS[:many]).read_bytes()))
    path.write_bytes(data[: sizes[1]] + data[sizes[2] :])

    with pytest.raises(LogDamaged, match=r"entry 3 at byte \d+, where 2 should follow"):
        read(path, kinds=EVENTS)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseTaken:
    """A kind that a newer Gyre writes."""

    cell: int
    claims: tuple[int, ...]


def test_an_unknown_kind_of_a_newer_minor_is_kept_and_skipped(tmp_path):
    path = tmp_path / "journal"
    lease = LeaseTaken(cell=1, claims=(4, 5))
    facts = [FACTS[0], (0.2, lease), *FACTS[1:]]
    write(path, replace(HEADER, minor=7), facts, kinds=(*EVENTS, LeaseTaken))
    found = read(path, kinds=EVENTS)

    assert (1, list(FACTS)) == (found.num_unknown, found.facts(EVENTS))
    assert (
        UnknownEvent(kind="LeaseTaken", fact=msgspec.msgpack.encode(lease))
        == found.entries[1].event
    )
    assert lease == read(path, kinds=(*EVENTS, LeaseTaken)).entries[1].event


def test_a_field_that_a_newer_minor_added_is_passed_over(tmp_path):
    path = written(tmp_path / "journal", [])
    fact = msgspec.Raw(msgspec.msgpack.encode({"cell": 2, "cause": "heat"}))
    entry = msgspec.msgpack.encode([0, 0, 1.0, None, 0, "CellDied", fact, "more"])
    path.write_bytes(path.read_bytes() + framed(entry))

    assert [(1.0, CellDied(cell=CellId(2)))] == read(path, kinds=EVENTS).facts(EVENTS)


def test_a_newer_major_is_refused_by_name(tmp_path):
    path = written(tmp_path / "journal", header=replace(HEADER, major=2, minor=0))

    with pytest.raises(LogDamaged, match=r"format 2\.0 is newer than 1, which this Gyre reads"):
        read(path, kinds=EVENTS)


def test_nobody_goes_on_with_a_journal_of_a_newer_minor(tmp_path):
    path = written(tmp_path / "journal", header=replace(HEADER, minor=MINOR + 1))
    before = path.read_bytes()
    newer = f"format {MAJOR}.{MINOR + 1} is newer than {MAJOR}.{MINOR}, which is written"

    with pytest.raises(ConfigError, match=re.escape(newer)):
        Journal.resume(path, at=0.0, kinds=EVENTS)
    assert before == path.read_bytes()


@pytest.mark.parametrize(
    ("data", "error", "says"),
    [
        (b"\x80\x04\x95 a pickle, for all we know", LogDamaged, "not a run journal"),
        (MAGIC + framed(b"\xc1"), LogDamaged, "its header does not decode"),
        (None, ConfigError, "no journal that can be read: No such file"),
    ],
)
def test_what_is_no_journal_is_refused(tmp_path, data, error, says):
    path = tmp_path / "journal"
    if data is not None:
        path.write_bytes(data)

    with pytest.raises(error, match=says):
        read(path, kinds=EVENTS)


# One writer


def test_a_second_writer_is_refused_by_name(path):
    first, _ = Journal.resume(path, at=9.0, kinds=EVENTS)
    before = path.read_bytes()

    with pytest.raises(ConfigError, match="journal: another controller writes this journal"):
        Journal.resume(path, at=9.0, kinds=EVENTS)
    with pytest.raises(ConfigError, match="journal: another controller writes this journal"):
        Journal.create(path, HEADER, kinds=EVENTS)
    assert before == path.read_bytes()

    first.close()
    Journal.resume(path, at=9.0, kinds=EVENTS)[0].close()


def test_a_journal_is_not_begun_twice(path):
    before = path.read_bytes()

    with pytest.raises(ConfigError, match="there is a journal already"):
        Journal.create(path, HEADER, kinds=EVENTS)
    assert before == path.read_bytes()


def test_a_journal_torn_within_its_header_is_begun_again_and_not_resumed(path):
    path.write_bytes(path.read_bytes()[:20])

    with pytest.raises(ConfigError, match="ends before its header"):
        Journal.resume(path, at=0.0, kinds=EVENTS)
    written(path)
    assert FACTS == tuple(read(path, kinds=EVENTS).facts(EVENTS))


def test_a_resume_cuts_the_torn_tail_and_begins_an_epoch_where_time_stood(path):
    path.write_bytes(path.read_bytes()[:-3])
    journal, before = Journal.resume(path, at=99.0, kinds=EVENTS)
    with journal:
        assert (1, 7.0) == (journal.epoch, journal.now)
        journal.append(TimerFired(), now=7.0)
    again, _ = Journal.resume(path, at=100.0, kinds=EVENTS)
    again.close()
    found = read(path, kinds=EVENTS)

    assert FACTS[:3] == tuple(before.facts(EVENTS))
    assert [0, 0, 0, 1, 1, 2] == [one.epoch for one in found.entries]
    assert [Resumed(at=99.0), TimerFired(), Resumed(at=100.0)] == [
        one.event for one in found.entries[3:]
    ]
    assert list(range(6)) == [one.sequence for one in found.entries]


def test_a_writer_that_slept_while_another_wrote_is_stopped(tmp_path):
    """FAULTS 30: where the lock did not hold, the older epoch notices before it writes."""
    path = tmp_path / "journal"
    stale = Journal.create(path, HEADER, kinds=EVENTS)
    stale.append(RunStarted(), now=0.0)
    stale.commit()
    copy = written(tmp_path / "copy", [(0.0, RunStarted())])
    other, _ = Journal.resume(copy, at=5.0, kinds=EVENTS)
    other.close()
    path.write_bytes(copy.read_bytes())
    before = path.read_bytes()
    stale.append(TimerFired(), now=1.0)

    with pytest.raises(TakenOver, match="another controller writes this journal: it has"):
        stale.commit()
    with pytest.raises(TakenOver):
        stale.close()
    assert before == path.read_bytes()


def test_an_older_epoch_behind_a_newer_one_is_damage(path):
    Journal.resume(path, at=0.0, kinds=EVENTS)[0].close()
    late = msgspec.msgpack.encode([5, 0, 9.0, None, 0, "TimerFired", {}])
    path.write_bytes(path.read_bytes() + framed(late))

    with pytest.raises(LogDamaged, match="goes back from epoch 1"):
        read(path, kinds=EVENTS)


@pytest.mark.parametrize("now", [6.9, nan, inf])
def test_time_does_not_go_back_or_astray(path, now):
    journal, _ = Journal.resume(path, at=0.0, kinds=EVENTS)
    with journal:
        with pytest.raises(InternalError, match="time went from 7"):
            journal.append(TimerFired(), now=now)
        assert 0 == journal.commit()


def test_a_kind_that_was_not_asked_for_is_refused(tmp_path):
    with Journal.create(tmp_path / "journal", HEADER, kinds=EVENTS) as journal:
        with pytest.raises(InternalError, match="LeaseTaken: no kind of fact"):
            journal.append(LeaseTaken(cell=1, claims=()), now=0.0)
        assert 0 == journal.append(RunStarted(), now=0.0)


def test_a_fact_posted_twice_counts_once_also_after_a_resume(tmp_path):
    """FAULTS 20."""
    path = tmp_path / "journal"
    ended = ExecutionTerminated(group=0, member=1, ending=Ending.COMPLETED)
    first, second = (Origin(source="supervisor-7", sequence=number) for number in (4, 5))
    with Journal.create(path, HEADER, kinds=EVENTS) as journal:
        assert 0 == journal.append(ended, now=1.0, origin=first)
        assert None is journal.append(ended, now=2.0, origin=first)
    journal, _ = Journal.resume(path, at=0.0, kinds=EVENTS)
    with journal:
        assert None is journal.append(ended, now=3.0, origin=first)
        assert 2 == journal.append(ended, now=3.0, origin=second)
        assert 3 == journal.append(ended, now=3.0, origin=replace(first, source="supervisor-8"))

    origins = [one.origin for one in read(path, kinds=EVENTS).entries]
    assert [first, None, second, replace(first, source="supervisor-8")] == origins


# Commits


def test_facts_are_in_the_file_from_the_commit_on_and_not_before(tmp_path):
    path = tmp_path / "journal"
    with Journal.create(path, HEADER, kinds=EVENTS) as journal:
        for now, event in FACTS:
            journal.append(event, now=now)
        assert () == read(path, kinds=EVENTS).entries
        assert 4 == journal.commit()
        assert 4 == len(read(path, kinds=EVENTS).entries)
        assert 0 == journal.commit()


@pytest.mark.parametrize(
    ("durability", "synced"), [(Durability.MACHINE, [3, 1]), (Durability.PROCESS, [])]
)
def test_a_commit_is_synced_once_for_all_its_facts_where_it_must_survive_the_machine(
    tmp_path, monkeypatch, durability, synced
):
    path = tmp_path / "journal"
    found = []
    with Journal.create(path, HEADER, kinds=EVENTS, durability=durability) as journal:

        def note(fd):
            found.append(len(read(path, kinds=EVENTS).entries) - sum(found))

        with monkeypatch.context() as patch:
            patch.setattr(framed_file, "os", Overridden(os, fdatasync=note))
            for now, event in FACTS[:3]:
                journal.append(event, now=now)
            journal.commit()
            journal.append(FACTS[3][1], now=8.0)
            journal.commit()

    assert synced == found


def test_a_sync_that_fails_leaves_the_file_as_it_was_and_the_facts_for_later(tmp_path, monkeypatch):
    path = tmp_path / "journal"

    def refuse(fd):
        raise OSError(28, "No space left on device")

    with Journal.create(path, HEADER, kinds=EVENTS) as journal:
        before = path.read_bytes()
        journal.append(RunStarted(), now=0.0)
        with monkeypatch.context() as patch:
            patch.setattr(framed_file, "os", Overridden(os, fdatasync=refuse))
            with pytest.raises(OSError, match="No space left"):
                journal.commit()
        assert before == path.read_bytes()
        assert 1 == journal.commit()
    assert [(0.0, RunStarted())] == read(path, kinds=EVENTS).facts(EVENTS)


FULL = """
import resource, signal, sys
from pathlib import Path
from gyre.journal.journal import Header
from gyre.journal.journal import read
from gyre.journal.journal import Journal
from gyre.scheduler.messages import CellDied, CellId
from gyre.scheduler.replay import EVENTS
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
path = Path(sys.argv[1])
journal = Journal.create(path, Header(run="r", seed=0, started_at=0.0, shape={}), kinds=EVENTS)
resource.setrlimit(resource.RLIMIT_FSIZE, (400, resource.RLIM_INFINITY))
committed = 0
while True:
    journal.append(CellDied(cell=CellId(committed)), now=1.0)
    journal.append(CellDied(cell=CellId(committed + 1)), now=1.0)
    try:
        committed += journal.commit()
    except OSError:
        break
found = read(path, kinds=EVENTS)
assert (committed, 0) == (len(found.entries), found.torn_bytes), "half a commit was left behind"
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
assert 2 == journal.commit()
cells = [one.event.cell for one in read(path, kinds=EVENTS).entries]
assert list(range(committed + 2)) == cells, cells
print("ok", committed)
"""


def test_a_full_disk_refuses_a_whole_commit_and_it_is_made_when_there_is_room(tmp_path):
    """FAULTS 31."""
    command = [sys.executable, "-c", FULL, str(tmp_path / "journal")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert "" == done.stderr
    assert done.stdout.startswith("ok ")
    assert "ok 0\n" != done.stdout


LEAKS = """
import os, resource, signal, sys
from pathlib import Path
from gyre.journal.journal import Header
from gyre.journal.journal import Journal
from gyre.scheduler.replay import EVENTS
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
path, much = Path(sys.argv[1]), resource.RLIM_INFINITY
header = Header(run="r", seed=0, started_at=0.0, shape={})
def tried(act, most_bytes):
    before = set(os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, much))
    try:
        act()
    except OSError:
        print(sorted(set(os.listdir("/proc/self/fd")) - before))
    resource.setrlimit(resource.RLIMIT_FSIZE, (much, much))
tried(lambda: Journal.create(path, header, kinds=EVENTS), 12)
Journal.create(path, header, kinds=EVENTS).close()
tried(lambda: Journal.resume(path, at=0.0, kinds=EVENTS), path.stat().st_size + 2)
Journal.resume(path, at=0.0, kinds=EVENTS)[0].close()
"""


def test_a_journal_that_finds_the_disk_full_leaves_no_file_open(tmp_path):
    command = [sys.executable, "-c", LEAKS, str(tmp_path / "journal")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert ("", "[]\n[]\n") == (done.stderr, done.stdout)


class AnyOrder(RuleBasedStateMachine):
    """Appends, commits, posts, deaths and resumes in any order, beside a list."""

    def __init__(self):
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.path = Path(self.folder.name) / "journal"
        self.journal = Journal.create(
            self.path, HEADER, kinds=EVENTS, durability=Durability.PROCESS
        )
        self.now = 0.0
        self.posted = {}
        self.epoch = 0
        self.committed = []
        self.pending = []

    @rule(event=ANY_EVENT, passed=st.floats(0, 10))
    def append(self, event, passed):
        self.now += passed
        self.journal.append(event, now=self.now)
        self.pending.append((self.epoch, self.now, event))

    @rule(source=st.sampled_from("ab"), sequence=st.integers(0, 5))
    def post(self, source, sequence):
        event = TimerFired()
        is_new = sequence > self.posted.get(source, -1)
        origin = Origin(source=source, sequence=sequence)

        assert is_new == (self.journal.append(event, now=self.now, origin=origin) is not None)
        if is_new:
            self.posted[source] = sequence
            self.pending.append((self.epoch, self.now, event))

    @rule()
    def commit(self):
        assert len(self.pending) == self.journal.commit()
        self.committed += self.pending
        self.pending = []

    @rule(torn=st.binary(min_size=1, max_size=7))
    def close_tear_and_resume(self, torn):
        self.commit()
        self.journal.close()
        with self.path.open("ab") as file:
            file.write(torn)
        self.journal, found = Journal.resume(self.path, at=1.0, kinds=EVENTS)
        self.epoch += 1
        self.committed.append((self.epoch, self.now, Resumed(at=1.0)))

        assert len(torn) == found.torn_bytes
        assert self.now == self.journal.now

    @invariant()
    def the_file_holds_what_was_committed(self):
        found = read(self.path, kinds=EVENTS)

        assert self.committed == [(one.epoch, one.now, one.event) for one in found.entries]

    def teardown(self):
        self.journal.close()
        self.folder.cleanup()


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(max_examples=30, stateful_step_count=20)


def test_a_journal_that_cannot_be_synced_at_its_end_lets_another_writer_in(tmp_path, monkeypatch):
    def fails(_):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    path = tmp_path / "journal"
    journal = Journal.create(path, HEADER, kinds=())
    with monkeypatch.context() as patched:
        patched.setattr(framed_file, "os", Overridden(os, fdatasync=fails))
        with pytest.raises(OSError, match="Input/output"):
            journal.close()
    again, _ = Journal.resume(path, at=1.0, kinds=())

    assert 1 == again.epoch
    again.close()
