"""The commit journal: what it holds comes back, and nothing else does."""

import errno
import fcntl
import os
from pathlib import Path

import pytest
from tests.module_patches import Overridden

from gyre.storage import files, framed_file
from gyre.storage.call_log import CallLog, path_of, read
from gyre.storage.wal import NAME, WalEntry, WriteAheadLog, entries, restore, shards
from gyre.types.call_records import CallDelivered
from gyre.types.errors import ConfigError, LogDamaged
from gyre.types.ids import CallId


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "executions").mkdir()
    return tmp_path


def grown(folder, name, calls):
    """A log with that many records, and the entries that copied them."""
    log = CallLog(path_of(folder, name))
    made = []
    for call in range(calls):
        offset = log.size_bytes
        data = log.append(CallDelivered(call=CallId(call)))
        made.append(WalEntry(log=name, offset=offset, data=data))
    log.close()
    return made


def write(folder, made, shard=0):
    """A journal that holds these entries, and is not open."""
    journal = WriteAheadLog(folder, shard=shard)
    journal.write(made)
    journal.close()


def test_what_was_written_is_read_back(folder):
    made = [WalEntry(log="a", offset=0, data=b"x" * 100), WalEntry(log="é", offset=2**40, data=b"")]
    journal = WriteAheadLog(folder)
    journal.write(made[:1])
    journal.write(made[1:])
    journal.close()

    assert made == list(entries(folder))


def test_a_torn_tail_ends_the_journal_at_every_byte(folder):
    made = [WalEntry(log="a", offset=at, data=bytes([at]) * 9) for at in range(4)]
    write(folder, made)
    data = (folder / NAME).read_bytes()
    for size in range(len(data)):
        (folder / NAME).write_bytes(data[:size])
        found = list(entries(folder))
        assert made[: len(found)] == found
    assert 4 > len(found)


@pytest.mark.parametrize("kept", range(0, 6))
def test_a_log_gets_back_what_it_lost(folder, kept):
    made = grown(folder, "a", 5)
    path = path_of(folder, "a")
    whole = path.read_bytes()
    write(folder, made)
    ends = [made[0].offset, *(one.offset + len(one.data) for one in made)]
    with path.open("r+b") as file:
        file.truncate(ends[kept])

    assert 5 - kept == restore(folder)
    assert whole == path.read_bytes()
    assert 0 == restore(folder)


def test_a_half_written_record_is_replaced(folder):
    made = grown(folder, "a", 3)
    path = path_of(folder, "a")
    whole = path.read_bytes()
    write(folder, made)
    path.write_bytes(whole[:-3])

    assert 1 == restore(folder)
    assert whole == path.read_bytes()


def test_a_gap_between_log_and_journal_is_damage(folder):
    made = grown(folder, "a", 3)
    path = path_of(folder, "a")
    write(folder, made[2:])
    path.write_bytes(path.read_bytes()[: made[1].offset])

    with pytest.raises(LogDamaged, match="the journal goes on at"):
        restore(folder)


def test_logs_that_were_removed_stay_removed(folder):
    made = grown(folder, "a", 2)
    write(folder, made)
    path_of(folder, "a").unlink()

    assert 0 == restore(folder)
    assert not path_of(folder, "a").exists()


def test_opening_restores_and_starts_empty(folder):
    made = grown(folder, "a", 2)
    write(folder, made)
    path_of(folder, "a").write_bytes(path_of(folder, "a").read_bytes()[: made[1].offset])
    again = WriteAheadLog(folder)
    again.close()

    assert 1 == again.num_restored
    assert [] == list(entries(folder))
    assert 2 == len(read(path_of(folder, "a")).records)


def test_logs_are_on_the_disk_before_the_journal_forgets_them(folder, monkeypatch):
    """A process that is killed leaves them whole, but in memory; then its machine may go down."""
    made, synced = grown(folder, "a", 2), []
    write(folder, made)

    def note(fd):
        synced.append((Path(f"/proc/self/fd/{fd}").resolve(), len(list(entries(folder)))))

    monkeypatch.setattr(files, "os", Overridden(os, fsync=note))
    WriteAheadLog(folder).close()

    assert [(path_of(folder, "a"), 2)] == synced


def test_a_run_folder_has_one_journal_at_a_time(folder):
    first = WriteAheadLog(folder)
    with pytest.raises(ConfigError, match="another proxy"):
        WriteAheadLog(folder)
    first.close()
    WriteAheadLog(folder).close()


def test_a_file_system_without_locks_is_named(folder, monkeypatch):
    def refuse(fd, operation):
        raise OSError(errno.ENOLCK, "No locks available")

    before = len(list(Path("/proc/self/fd").iterdir()))
    monkeypatch.setattr(framed_file, "fcntl", Overridden(fcntl, flock=refuse))
    with pytest.raises(ConfigError, match="commits: it cannot be locked: No locks available"):
        WriteAheadLog(folder)

    assert before == len(list(Path("/proc/self/fd").iterdir()))


def test_what_is_no_journal_is_refused_and_not_kept_open(folder):
    (folder / NAME).write_bytes(b"something else entirely")

    with pytest.raises(LogDamaged, match="not a commit journal"):
        WriteAheadLog(folder)
    (folder / NAME).unlink()
    WriteAheadLog(folder).close()


def test_every_shard_has_a_journal_of_its_own_and_gives_back_what_is_its_own(folder):
    first, second = grown(folder, "a", 2), grown(folder, "b", 2)
    write(folder, first)
    write(folder, second, shard=1)
    for name in ("a", "b"):
        with path_of(folder, name).open("r+b") as file:
            file.truncate(first[1].offset)

    assert [0, 1] == shards(folder)
    assert 1 == restore(folder, shard=1)
    assert [1, 2] == [len(read(path_of(folder, name)).records) for name in ("a", "b")]
