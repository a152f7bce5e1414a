"""The live host: the journal first, then the scheduler, then its orders."""

import asyncio
import errno
from contextlib import asynccontextmanager

import pytest
from tests.waiting import PATIENCE_S

from gyre.controller.controller import JOURNAL_EVENTS
from gyre.controller.run_loop import RunLoop
from gyre.journal.journal import Header, Journal, read
from gyre.scheduler.config import SchedulerConfig
from gyre.scheduler.messages import (
    AdmitGroup,
    GroupAdmitted,
    LaunchExecution,
    RunStarted,
    StopReason,
    TimerFired,
)
from gyre.scheduler.replay import plain_shape, replay
from gyre.scheduler.scheduler import Scheduler
from gyre.types.errors import InternalError
from gyre.types.run_events import JournalWaited, RunEnded

SHAPE = SchedulerConfig(
    groups_per_batch=2, executions_per_group=2, num_cells=1, cell_capacity=4, supply_dwell_s=3600.0
)
"""No timer of its own fires while a test goes on."""


def journal(path):
    header = Header(run="r", seed=0, started_at=0.0, shape=plain_shape(SHAPE))
    return Journal.create(path, header, kinds=JOURNAL_EVENTS)


class Obeying:
    """Collects commands, and does with them what a test says."""

    def __init__(self, execute=lambda commands: None):
        self.obeyed, self.noticed_facts, self._execute = [], [], execute

    def execute(self, commands):
        self.obeyed.append(commands)
        self._execute(commands)

    def noticed(self, now, fact):
        self.noticed_facts.append(fact)


@asynccontextmanager
async def running(scheduler, written, execute=lambda commands: None, **how):
    """A run loop and what executes for it, until all that was recorded is decided on."""
    host, executor = RunLoop(scheduler, written, **how), Obeying(execute)
    host.attach(executor)
    async with host.run():
        yield host, executor
        await host.settled()


def hosted(path, work, **how):
    """What `work` gives of a host whose orders are collected."""

    async def live():
        with journal(path) as written:
            async with running(Scheduler(SHAPE), written, **how) as (host, executor):
                await work(host)
        return executor.obeyed

    return asyncio.run(live())


def test_what_is_heard_is_journaled_before_anybody_reacts(tmp_path):
    path = tmp_path / "journal"
    seen = []

    async def work(host):
        host.record(RunStarted())

    def listener(now, fact):
        seen.append((fact, [one.event for one in read(path, kinds=JOURNAL_EVENTS).entries]))

    hosted(path, work, listeners=[listener])

    assert [(RunStarted(), [RunStarted()])] == seen


def test_facts_for_people_are_journaled_in_their_place_and_decide_nothing(tmp_path):
    path = tmp_path / "journal"

    async def work(host):
        host.record(RunStarted())
        host.record(RunEnded(reason="enough"))
        host.record(GroupAdmitted(group=0))

    obeyed = hosted(path, work)

    entries = [one.event for one in read(path, kinds=JOURNAL_EVENTS).entries]
    assert [RunStarted(), RunEnded(reason="enough"), GroupAdmitted(group=0)] == entries
    assert [AdmitGroup, LaunchExecution] == sorted(
        {type(one) for orders in obeyed for one in orders}, key=lambda one: one.__name__
    )


def test_orders_that_lead_to_events_are_followed_to_their_end(tmp_path):
    """An answer heard while an order is obeyed is decided on before `settled` returns."""
    heard = []

    async def live():
        with journal(tmp_path / "journal") as written:

            def execute(orders):
                for one in orders:
                    heard.append(one)
                    if isinstance(one, AdmitGroup):
                        host.record(GroupAdmitted(group=one.group))

            async with running(Scheduler(SHAPE), written, execute) as (host, _):
                host.record(RunStarted())

    asyncio.run(live())

    launched = [one for one in heard if isinstance(one, LaunchExecution)]
    assert 4 == len(launched)


def test_the_same_journal_gives_the_same_orders(tmp_path):
    decided = []

    async def work(host):
        host.record(RunStarted())
        host.record(GroupAdmitted(group=0))
        await host.settled()
        host.record(TimerFired())

    hosted(tmp_path / "j", work, decided=lambda *one: decided.append(one))

    facts = [(one.now, one.event) for one in read(tmp_path / "j", kinds=JOURNAL_EVENTS).entries]
    assert [(now, event) for _, now, event, _ in decided] == facts
    assert [tuple(orders) for *_, orders in decided] == list(replay(SHAPE, facts).orders)


def test_an_impossible_event_ends_the_host_with_its_name(tmp_path):
    async def live():
        with journal(tmp_path / "journal") as written:
            async with running(Scheduler(SHAPE), written) as (host, _):
                host.record(GroupAdmitted(group=5))

    with pytest.raises(ExceptionGroup) as caught:
        asyncio.run(live())

    assert "came before the run started" in str(caught.value.exceptions[0])


def test_a_run_loop_does_not_start_without_its_executor_and_has_one(tmp_path):
    async def live():
        with journal(tmp_path / "journal") as written:
            host = RunLoop(Scheduler(SHAPE), written)
            with pytest.raises(InternalError, match="without an executor"):
                async with host.run():
                    pass
            with pytest.raises(InternalError, match="is not running"):
                host.spawn(asyncio.sleep(0))
            host.attach(Obeying())
            with pytest.raises(InternalError, match="has an executor"):
                host.attach(Obeying())

    asyncio.run(live())


def test_tasks_end_with_the_run_and_the_first_reason_to_stop_counts(tmp_path):
    async def live():
        with journal(tmp_path / "journal") as written:
            async with running(Scheduler(SHAPE), written) as (host, executor):
                task = host.spawn(asyncio.sleep(PATIENCE_S))
                host.record(RunStarted())
                host.stop(StopReason.FINISHED)
                host.stop(None)
        return await host.stopped, task.cancelled(), executor.noticed_facts

    assert (StopReason.FINISHED, True, [RunStarted()]) == asyncio.run(live())


class FullDisk:
    """A journal whose file takes nothing for a while."""

    def __init__(self, written, refusals):
        self._written, self._left = written, refusals
        self.append = written.append

    @property
    def now(self):
        return self._written.now

    def commit(self):
        if self._left:
            self._left -= 1
            raise OSError(errno.ENOSPC, "No space left on device")
        return self._written.commit()


def test_a_full_disk_stops_everything_until_there_is_room_again(tmp_path, monkeypatch):
    """FAULTS 31: nothing is decided on what is not in the journal, and nothing of it is lost."""
    monkeypatch.setattr("gyre.controller.run_loop.RETRY_S", 0.01)
    path, alarms, obeyed, seen = tmp_path / "journal", [], [], []

    def execute(commands):
        seen.append([one.event for one in read(path, kinds=JOURNAL_EVENTS).entries])
        obeyed.extend(commands)

    async def live():
        with journal(path) as written:
            disk = FullDisk(written, refusals=3)
            how = {"alarm": alarms.append}
            async with running(Scheduler(SHAPE), disk, execute, **how) as (host, _):
                host.record(RunStarted())

    asyncio.run(live())
    found = [one.event for one in read(path, kinds=JOURNAL_EVENTS).entries]

    assert [[RunStarted()]] == seen
    assert [AdmitGroup] * len(obeyed) == [type(one) for one in obeyed]
    assert obeyed
    assert [RunStarted, JournalWaited] == [type(one) for one in found]
    assert ["cannot be written", "is written again"] == [
        words
        for one in alarms
        for words in ("cannot be written", "is written again")
        if words in one
    ]


class Dwelling:
    """A scheduler that waits for a moment from the first event on, and for nothing else."""

    def __init__(self):
        self.due = None
        self.woken = asyncio.Event()

    def handle(self, event, now):
        if isinstance(event, TimerFired):
            self.woken.set()
        elif self.due is None:
            self.due = now + 0.05
        return []

    def wake_at(self, now):
        return self.due if self.due is not None and self.due > now else None


def test_a_moment_that_goes_by_while_the_journal_waits_is_not_missed(tmp_path, monkeypatch):
    """FAULTS 31: the run goes on, although nothing else will ever happen."""
    monkeypatch.setattr("gyre.controller.run_loop.RETRY_S", 0.1)

    async def live():
        with journal(tmp_path / "journal") as written:
            scheduler = Dwelling()
            disk = FullDisk(written, refusals=1)
            async with running(scheduler, disk, alarm=lambda message: None) as (host, _):
                host.record(RunStarted())
                async with asyncio.timeout(PATIENCE_S):
                    await scheduler.woken.wait()

    asyncio.run(live())
