"""Executions that an earlier controller launched: each goes on, or begins anew, and none twice."""

import asyncio
import errno
import json
import os
import signal
import threading

import pytest
from tests.controller.support.supervised import order, resume, supervised
from tests.waiting import PATIENCE_S, until

from gyre.cluster.process import LocalNode
from gyre.controller.executions import supervisors
from gyre.controller.executions.supervisors import SILENT_S, HeldTime, Supervisors
from gyre.proxy.client import SealedExecution
from gyre.rollout.facts import FACTS_FILE, FactEntry, FactsFile
from gyre.rollout.heartbeat import BEAT_FILE
from gyre.rollout.main import LOG_FILE, Secrets
from gyre.rollout.spec import (
    ORDER_FILE,
    ProxyTotals,
    read_proxy_totals,
    withdraw_order,
    write_order,
    write_proxy_totals,
)
from gyre.storage import files
from gyre.testing.processes import FakeForker
from gyre.types.outcomes import Closed, Ending, Launched, Outcome, Prepared, Terminated

NAME = "g00000-00"
PREPARED = Prepared(mark="m")
LAUNCHED = Launched(monotonic_s=1.0, boot="b")
ENDED = Terminated(ending=Ending.COMPLETED, reason="exit status 0", elapsed_s=1.0, state=None)
CANCELLED = Terminated(ending=Ending.CANCELLED, reason="told", elapsed_s=1.0, state=None)
VALID = Closed(outcome=Outcome.VALID, score=0.0, reason=None)
SURPLUS = Closed(outcome=Outcome.SURPLUS, score=None, reason=None)


class Proxy:
    """Its executions exist from before, if `opened` says so."""

    def __init__(self, opened=()):
        self.opened, self.sealed, self.held_s = set(opened), [], 0.0

    async def open(self, execution):
        if execution in self.opened:
            return None
        self.opened.add(execution)
        return "key"

    async def seal(self, execution):
        self.sealed.append(execution)
        return SealedExecution(committed_calls=2, held_s=self.held_s)

    async def held(self):
        return {NAME: self.held_s}

    def url_of(self, execution):
        return f"http://proxy/exec/{execution}"


class Scene:
    """Supervisors of one execution, in a folder that is as an earlier controller left it."""

    def __init__(self, folder, *, opened=(NAME,)):
        self.folder = folder / "attempts" / NAME
        self.proxy = Proxy(opened)
        self.forker = FakeForker(LocalNode(), ends_by=())
        self.heard, self.begun_anew, self._spawned = [], [], set()
        self.now = 0.0
        self.supervisors = Supervisors(
            self.proxy,
            self.forker,
            order_of=lambda name, task, url: order("true"),
            facts_token="t",
            spawn=self._spawn,
            clock=lambda: self.now,
        )

    @property
    def keys(self):
        """Of the supervisors that were forked."""
        assert all(one.outlives_parent for one in self.forker.requests)
        return [json.loads(one.secret)["key"] for one in self.forker.requests]

    async def terminated(self, execution, fact):
        self.heard.append(fact)

    async def closed(self, execution, fact):
        self.heard.append(fact)

    def lost(self, execution, reason):
        self.begun_anew.append((execution.name, reason))

    def _spawn(self, work):
        task = asyncio.ensure_future(work)
        self._spawned.add(task)
        return task

    def left(self, *facts):
        """What the disk says of it."""
        write_order(self.folder, order("true"))
        file = FactsFile(self.folder)
        for fact in facts:
            file.append(fact, at=0.0)
        file.close()

    async def adopt(self, **known):
        self.supervisors.adopt(NAME, order("true").task, self.folder, self, **known)
        await asyncio.gather(*self._spawned)

    async def look(self, times=1):
        for _ in range(times):
            await self.supervisors.look()


@pytest.fixture
def scene(tmp_path):
    def play(scenario, **how):
        async def work():
            made = Scene(tmp_path, **how)
            await asyncio.wait_for(scenario(made), PATIENCE_S)
            return made

        return asyncio.run(work())

    return play


def test_a_supervisor_that_lives_goes_on_and_is_heard_from_the_disk(scene):
    async def scenario(one):
        one.left(PREPARED, LAUNCHED)
        held = files.take(one.folder)
        await one.adopt()
        await one.look(2)
        assert [] == one.heard
        one.left(ENDED, VALID)
        await one.look(2)
        os.close(held)

    found = scene(scenario)

    assert [ENDED, VALID] == found.heard
    assert ([], [NAME], []) == (found.keys, found.proxy.sealed, found.begun_anew)


def test_what_is_posted_and_read_from_the_disk_counts_once(scene):
    async def scenario(one):
        one.left(PREPARED, LAUNCHED, ENDED)
        held = files.take(one.folder)
        await one.adopt()
        await one.supervisors.receive(NAME, FactEntry(sequence=2, at=0.0, fact=ENDED))
        one.left(VALID)
        await one.supervisors.receive(NAME, FactEntry(sequence=3, at=0.0, fact=VALID))
        await one.look(2)
        os.close(held)

    assert [ENDED, VALID] == scene(scenario).heard


def test_an_end_that_was_written_down_is_not_heard_again(scene):
    async def scenario(one):
        one.left(PREPARED, LAUNCHED, ENDED, VALID)
        await one.adopt(is_terminated=True)

    found = scene(scenario)

    assert [VALID] == found.heard
    assert [] == found.proxy.sealed


def test_a_dead_one_whose_program_ran_is_revived_without_its_key(scene):
    """Nothing is launched twice, so nobody needs the key any more."""

    async def scenario(one):
        one.left(PREPARED, LAUNCHED)
        await one.adopt()
        await one.look(2)

    found = scene(scenario)

    assert [""] == found.keys
    assert [] == found.begun_anew


def test_what_a_revived_one_says_is_read_from_the_disk(scene):
    """It posts where its order says, to the address of a controller that is gone."""

    async def scenario(one):
        one.left(PREPARED, LAUNCHED)
        await one.adopt()
        await one.look()
        one.left(ENDED, VALID)
        await one.look()

    found = scene(scenario)

    assert [ENDED, VALID] == found.heard
    assert [""] == found.keys


def test_a_dead_one_that_failed_to_start_is_revived_to_be_closed(scene):
    never = Terminated(ending=Ending.NEVER_STARTED, reason="no image", elapsed_s=None, state=None)

    async def scenario(one):
        one.left(never)
        await one.adopt()
        await one.look()

    found = scene(scenario)

    assert [never] == found.heard
    assert [""] == found.keys


def test_a_dead_one_whose_program_never_ran_begins_anew(scene):
    async def scenario(one):
        one.left(PREPARED)
        await one.adopt()
        await one.look()

    found = scene(scenario)

    assert [(NAME, "its supervisor died before the program ran")] == found.begun_anew
    assert ([NAME], [], []) == (found.proxy.sealed, found.heard, found.keys)


def test_one_that_is_forked_after_it_began_anew_finds_no_order(scene):
    """Its fork server may be slow to die: nobody's program is started twice."""

    async def scenario(one):
        one.left()
        await one.adopt()
        await one.look()

    found = scene(scenario)
    late = resume(found.folder, Secrets(key="k"))

    assert 2 == late.wait(PATIENCE_S)
    assert "expected an order" in (found.folder / LOG_FILE).read_text()
    assert [(NAME, "its supervisor died before the program ran")] == found.begun_anew
    assert not (found.folder / "workspace").exists()


def test_one_that_was_forked_late_and_lives_is_not_begun_anew(scene, monkeypatch):
    """It has taken its folder since it was looked for."""
    monkeypatch.setattr(supervisors, "is_taken", lambda folder: False)

    async def scenario(one):
        one.left(PREPARED)
        await one.adopt()
        held = files.take(one.folder)
        await one.look()
        os.close(held)

    found = scene(scenario)

    assert ([], []) == (found.begun_anew, found.keys)
    assert (found.folder / ORDER_FILE).exists()


def test_an_order_that_cannot_be_withdrawn_now_stays(tmp_path):
    (tmp_path / ORDER_FILE).mkdir()

    assert not withdraw_order(tmp_path)
    (tmp_path / ORDER_FILE).rmdir()
    assert withdraw_order(tmp_path)
    assert withdraw_order(tmp_path / "gone")


def test_one_that_was_ordered_and_not_begun_is_launched(scene):
    found = scene(lambda one: one.adopt(), opened=())

    assert (["key"], []) == (found.keys, found.begun_anew)


def test_one_whose_key_was_told_to_a_dead_controller_begins_anew(scene):
    found = scene(lambda one: one.adopt())

    assert [(NAME, "its key was told to nobody who lives")] == found.begun_anew
    assert [] == found.keys


def test_a_program_that_was_ended_with_its_controller_begins_anew(scene):
    """It got no score for what somebody else's end interrupted."""

    async def scenario(one):
        one.left(PREPARED, LAUNCHED, CANCELLED, SURPLUS)
        await one.adopt()

    found = scene(scenario)

    assert [(NAME, "its program was ended with an earlier controller")] == found.begun_anew
    assert [] == found.heard


def test_one_that_was_cancelled_by_order_is_surplus(scene):
    async def scenario(one):
        one.left(PREPARED, LAUNCHED, CANCELLED, SURPLUS)
        await one.adopt(is_cancelled=True)

    assert [CANCELLED, SURPLUS] == scene(scenario).heard


def test_an_assessment_that_was_ended_with_its_controller_is_no_score(scene):
    async def scenario(one):
        one.left(PREPARED, LAUNCHED, ENDED, SURPLUS)
        await one.adopt(is_terminated=True)

    (closed,) = scene(scenario).heard

    assert (Outcome.EXCLUDED, None) == (closed.outcome, closed.score)


def test_one_that_never_started_and_whose_end_was_written_down_is_only_closed(scene):
    found = scene(lambda one: one.adopt(is_terminated=True))

    assert [Outcome.PLACEHOLDER] == [one.outcome for one in found.heard]
    assert ([], []) == (found.keys, found.begun_anew)


def test_facts_that_are_damaged_exclude_it(scene):
    async def scenario(one):
        one.left(PREPARED)
        (one.folder / FACTS_FILE).write_text("no fact\n")
        await one.adopt()

    ended, closed = scene(scenario).heard

    assert (Ending.CRASHED, Outcome.EXCLUDED) == (ended.ending, closed.outcome)


def test_what_it_was_told_before_is_not_taken_back_by_a_new_proxy(scene):
    async def scenario(one):
        one.left(PREPARED, LAUNCHED)
        write_proxy_totals(one.folder, ProxyTotals(held_s=50.0))
        held = files.take(one.folder)
        await one.adopt()
        one.proxy.held_s = 7.0
        await one.look()
        os.close(held)

    assert 57.0 == read_proxy_totals(scene(scenario).folder).held_s


def full_for(monkeypatch, times):
    """The disk has no room for a proxy's totals at first."""
    real, left = supervisors.write_proxy_totals, [None] * times

    def write(folder, totals):
        if left:
            left.pop()
            raise OSError(errno.ENOSPC, "No space left on device")
        real(folder, totals)

    monkeypatch.setattr(supervisors, "write_proxy_totals", write)
    monkeypatch.setattr(supervisors, "POLL_S", 0.01)


def test_a_disk_that_is_full_when_an_execution_ends_is_waited_for(scene, monkeypatch):
    """FAULTS 31: whether it is a placeholder depends on what could not be written."""
    full_for(monkeypatch, 2)

    async def scenario(one):
        one.left(PREPARED, LAUNCHED, ENDED)
        held = files.take(one.folder)
        await one.adopt()
        await one.look()
        os.close(held)

    found = scene(scenario)

    assert [ENDED] == found.heard
    assert 2 == read_proxy_totals(found.folder).committed_calls


def test_a_disk_that_is_full_when_calls_wait_ends_nothing(scene, monkeypatch):
    full_for(monkeypatch, 2)

    async def scenario(one):
        one.left(PREPARED, LAUNCHED)
        held = files.take(one.folder)
        await one.adopt()
        one.proxy.held_s = 7.0
        await one.look(3)
        os.close(held)

    assert 7.0 == read_proxy_totals(scene(scenario).folder).held_s


def test_what_a_proxy_counted_is_written_by_one_task_at_a_time(scene, monkeypatch):
    """Else one of two that write the same file finds the other's half of it, or undoes it."""
    real, begun, may_end = supervisors.write_proxy_totals, threading.Event(), threading.Event()

    def write(folder, totals):
        if totals.committed_calls is None:
            begun.set()
            may_end.wait(PATIENCE_S)
        real(folder, totals)

    monkeypatch.setattr(supervisors, "write_proxy_totals", write)

    async def scenario(one):
        one.left(PREPARED, LAUNCHED)
        held = files.take(one.folder)
        await one.adopt()
        one.proxy.held_s = 7.0
        looking = asyncio.create_task(one.look())
        await asyncio.to_thread(begun.wait)
        entry = FactEntry(sequence=2, at=0.0, fact=ENDED)
        ending = asyncio.create_task(one.supervisors.receive(NAME, entry))
        # It waits until the file is written.
        await asyncio.wait((ending,), timeout=0.1)
        may_end.set()
        await asyncio.gather(looking, ending)
        os.close(held)

    found = scene(scenario)

    assert [ENDED] == found.heard
    assert ProxyTotals(held_s=7.0, committed_calls=2) == read_proxy_totals(found.folder)


def test_a_fact_that_could_not_be_taken_in_is_taken_when_it_is_posted_again(scene, monkeypatch):
    def write(folder, totals):
        raise OSError(errno.EIO, "Input/output error")

    async def scenario(one):
        one.left(PREPARED, LAUNCHED)
        held = files.take(one.folder)
        await one.adopt()
        entry = FactEntry(sequence=2, at=0.0, fact=ENDED)
        with monkeypatch.context() as broken:
            broken.setattr(supervisors, "write_proxy_totals", write)
            with pytest.raises(OSError, match="Input/output"):
                await one.supervisors.receive(NAME, entry)
        await one.supervisors.receive(NAME, entry)
        os.close(held)

    assert [ENDED] == scene(scenario).heard


def test_seconds_of_one_proxy_after_another_add_up():
    held = HeldTime()

    assert [1.0, 5.0, 6.0, 8.0, 9.0] == [held.counted(one) for one in (1.0, 5.0, 1.0, 3.0, 4.0)]


def test_a_supervisor_that_is_nobodys_child_hears_that_it_is_surplus(tmp_path):
    """A real one, found by its log."""
    folder = tmp_path / "attempts" / NAME

    async def adopt():
        one = Scene(tmp_path)
        await one.adopt(is_cancelled=True)

        async def is_closed():
            await one.look()
            return SURPLUS.outcome in [getattr(fact, "outcome", None) for fact in one.heard]

        await until(is_closed, "the fact that it is closed")
        return one.heard

    with supervised(folder, order("echo line > work; sleep 600")) as running:
        running.wait_for_work()
        ended, closed = asyncio.run(asyncio.wait_for(adopt(), PATIENCE_S))
        assert 0 == running.process.wait(PATIENCE_S)

    assert (Ending.CANCELLED, Outcome.SURPLUS) == (ended.ending, closed.outcome)


def test_a_supervisor_that_hangs_is_followed_by_another(scene):
    """FAULTS I10: it lives by its process and shows no more that it does."""

    async def scenario(one):
        def beats_at(seconds):
            os.utime(one.folder / BEAT_FILE, (seconds, seconds))

        one.left(PREPARED, LAUNCHED)
        (one.folder / BEAT_FILE).touch()
        await one.adopt()
        await one.look()
        (hung,) = one.forker.processes
        for one.now in range(0, 3 * int(SILENT_S), 10):
            beats_at(min(one.now, 2 * SILENT_S))
            await one.look()
        before = list(hung.signals)
        one.now = 3 * SILENT_S
        await one.look()
        await one.look(2)
        (_, second) = one.forker.processes
        return before, hung.signals, second.signals

    found = []

    async def noted(one):
        found.append(await scenario(one))

    scene(noted)

    assert [([], [signal.SIGKILL], [])] == found


def test_a_supervisor_is_not_taken_for_hung_because_everything_stood_still(scene):
    """The looker may be awake before it; it counts as hung after a silence that was heard."""

    async def scenario(one):
        one.left(PREPARED, LAUNCHED)
        (one.folder / BEAT_FILE).touch()
        await one.adopt()
        await one.look(2)
        one.now = 10 * SILENT_S
        await one.look(2)
        (child,) = one.forker.processes
        found.append(list(child.signals))
        for after_s in range(0, int(SILENT_S), 10):
            one.now = 10 * SILENT_S + after_s
            await one.look()
        found.append(child.signals)

    found = []
    scene(scenario)

    assert [[], [signal.SIGKILL]] == found


def test_a_supervisor_that_never_showed_that_it_lives_is_not_taken_for_hung(scene):
    """It may have found no room on the disk to do so."""

    async def scenario(one):
        one.left(PREPARED, LAUNCHED)
        await one.adopt()
        await one.look()
        one.now = 10 * SILENT_S
        await one.look()

        assert [[]] == [child.signals for child in one.forker.processes]

    scene(scenario)


def test_at_the_end_of_a_run_no_supervisor_of_an_earlier_controller_is_left(tmp_path, monkeypatch):
    monkeypatch.setattr(supervisors, "END_S", PATIENCE_S)
    folder = tmp_path / "attempts" / NAME

    async def end():
        one = Scene(tmp_path)
        await one.adopt()
        await one.supervisors.end()

    with supervised(folder, order("echo line > work; sleep 600")) as running:
        running.wait_for_work()
        asyncio.run(asyncio.wait_for(end(), PATIENCE_S))
        running.process.wait(PATIENCE_S)

        assert not files.is_taken(folder)
        assert signal.SIGKILL != -running.process.returncode
