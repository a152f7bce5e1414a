"""Group commit: who waits together is served together, and failures lose nothing."""

import asyncio
import threading
from contextlib import ExitStack

import pytest

from gyre.storage.call_log import CallLog, path_of, read
from gyre.storage.wal import WalWriter, WriteAheadLog, entries
from gyre.types.call_records import CallDelivered
from gyre.types.ids import CallId


class Balky(WriteAheadLog):
    """A journal whose disk is full for its first writes."""

    refusals = 0

    def write(self, entries):
        if self.refusals:
            self.refusals -= 1
            raise OSError(28, "No space left on device")
        super().write(entries)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "executions").mkdir()
    return tmp_path


@pytest.fixture
def logs_of(folder):
    """Makes call logs by name, which are closed in the end."""
    with ExitStack() as opened:

        def make(count):
            logs = {f"x{number}": CallLog(path_of(folder, f"x{number}")) for number in range(count)}
            for log in logs.values():
                opened.callback(log.close)
            return logs

        yield make


def append(commit, name, log, call):
    offset = log.size_bytes
    commit.note(log, name, offset, log.append(CallDelivered(call=CallId(call))))


def test_calls_that_end_together_share_a_sync(folder, logs_of):
    commit = WalWriter(WriteAheadLog(folder))
    logs = logs_of(50)

    async def one(name, log):
        append(commit, name, log, 1)
        await commit.sync()

    async def run():
        await asyncio.gather(*(one(name, log) for name, log in logs.items()))

    asyncio.run(run())
    commit.close()
    assert 50 == commit.num_waits
    # The first waits alone; the rest gather behind it.
    assert 2 >= commit.num_syncs
    assert set(logs) == {entry.log for entry in entries(folder)}


def test_a_full_journal_syncs_the_logs_and_starts_again(folder, logs_of):
    commit = WalWriter(WriteAheadLog(folder), most_journal_bytes=200)
    logs = logs_of(2)

    async def run():
        for call in range(40):
            for name, log in logs.items():
                append(commit, name, log, call)
            await commit.sync()

    asyncio.run(run())
    commit.close()
    assert 200 >= (folder / "commits").stat().st_size
    assert {40} == {len(read(path_of(folder, name)).records) for name in logs}


def test_a_refused_write_is_told_and_made_good_by_the_next(folder, logs_of):
    """FAULTS 31: the journal has no gap when the disk takes writes again."""
    journal = Balky(folder)
    journal.refusals = 1
    commit = WalWriter(journal)
    ((name, log),) = logs_of(1).items()

    async def run():
        append(commit, name, log, 1)
        with pytest.raises(OSError, match="No space"):
            await commit.sync()
        append(commit, name, log, 2)
        await commit.sync()

    asyncio.run(run())
    commit.close()
    found = list(entries(folder))
    assert 2 == len(found)
    assert found[0].offset + len(found[0].data) == found[1].offset


def test_a_log_closed_meanwhile_is_no_obstacle(folder):
    commit = WalWriter(WriteAheadLog(folder), most_journal_bytes=1)
    log = CallLog(path_of(folder, "x"))

    async def run():
        append(commit, "x", log, 1)
        log.close()
        await commit.sync()

    asyncio.run(run())
    commit.close()
    assert 1 == len(read(path_of(folder, "x")).records)


class Stuck(WriteAheadLog):
    """A journal whose disk does not answer before it is told to."""

    def __init__(self, folder):
        super().__init__(folder)
        self.may_go_on = threading.Event()

    def write(self, entries):
        self.may_go_on.wait()
        super().write(entries)


def test_a_disk_that_does_not_answer_is_told_in_time_and_made_good_later(folder, logs_of):
    """FAULTS 31: a proxy whose calls wait for ever would look well to whoever asks it."""
    journal = Stuck(folder)
    commit = WalWriter(journal, within_s=0.01)
    ((name, log),) = logs_of(1).items()

    async def run():
        append(commit, name, log, 1)
        with pytest.raises(OSError, match=r"longer than 0\.01 s"):
            await commit.sync()
        journal.may_go_on.set()

    asyncio.run(run())
    commit.close()
    assert [name] == [entry.log for entry in entries(folder)]


class Odd(WriteAheadLog):
    """A journal that fails in a way that nobody has foreseen."""

    has_failed = False

    def write(self, entries):
        if not self.has_failed:
            self.has_failed = True
            raise RuntimeError("odd")
        super().write(entries)


def test_an_unforeseen_failure_is_told_and_the_next_call_is_served(folder, logs_of):
    commit = WalWriter(Odd(folder))
    ((name, log),) = logs_of(1).items()

    async def run():
        append(commit, name, log, 1)
        with pytest.raises(OSError, match="RuntimeError: odd"):
            await commit.sync()
        await commit.sync()

    asyncio.run(run())
    commit.close()
    assert [name] == [entry.log for entry in entries(folder)]
