"""The sandbox contract, kept by processes of this machine, and by those in namespaces."""

import asyncio
import secrets
import signal
import subprocess
import time

import pytest
from tests.contracts import sandbox as suite
from tests.controller.support.supervised import is_alive
from tests.module_patches import Overridden
from tests.waiting import PATIENCE_S, wait_until

from gyre.sandboxes import process_tree
from gyre.sandboxes.local.sandbox import LocalSandbox, SandboxLayout
from gyre.sandboxes.process import ProcessSandbox
from gyre.sandboxes.process_tree import KILL_S, MARK, SandboxProcesses
from gyre.types.tasks import Command


class Processes:
    def __init__(self, folder):
        self.workspace = folder / "workspace"
        self.workspace.mkdir()
        self._home = folder / "home"

    def make(self):
        return ProcessSandbox(secrets.token_hex(16), home=self._home)

    def is_alive(self, pid):
        return is_alive(pid)


class Namespaces(suite.InNamespaces):
    def make(self):
        mark = self.mark()
        place = SandboxLayout(folder=self.folder / mark, home=self.folder / "home")
        return LocalSandbox(mark, place)


def kept(promise, subject):
    async def keep():
        async with asyncio.timeout(PATIENCE_S):
            await promise(subject)

    asyncio.run(keep())


@pytest.mark.parametrize("promise", suite.EVERY_SANDBOX, ids=lambda promise: promise.__name__)
def test_processes_keep_the_promise_that(promise, tmp_path):
    kept(promise, Processes(tmp_path))


@pytest.mark.parametrize("promise", suite.EVERY_SANDBOX, ids=lambda promise: promise.__name__)
def test_namespaces_keep_the_promise_that(promise, tmp_path):
    kept(promise, Namespaces(tmp_path))


def test_processes_of_others_are_left_alone(tmp_path):
    """A child of this very process that is not the sandbox's."""
    with subprocess.Popen(["sleep", "60"]) as stranger:
        kept(suite.killing_ends_what_hides_and_what_does_not_listen, Processes(tmp_path))
        was_alive = stranger.poll() is None
        stranger.kill()

    assert was_alive


def test_what_is_just_being_started_is_found(tmp_path):
    """Killed at once, while its processes fork, leave each other and become other programs."""

    async def killed():
        subject, marks = Processes(tmp_path), []
        for _ in range(10):
            marks.append(secrets.token_hex(16))
            one = ProcessSandbox(marks[-1], home=tmp_path / "home")
            await one.prepare(str(subject.workspace))
            command = Command(argv=("sh", "-c", suite.ESCAPE))
            await one.start(command, output=str(tmp_path / "output"), most_bytes=1000)
            await one.kill()
        return [SandboxProcesses(mark, owns_descendants=False) for mark in marks]

    members = asyncio.run(killed())
    left = [one for each in members for one in each.alive()]
    for each in members:
        each.kill(reaped_elsewhere=None)

    assert [] == left


@pytest.mark.parametrize("num_blind", [0, 1])
def test_who_stands_still_before_it_kills_does_not_give_up(num_blind, monkeypatch):
    """The limit is of dying; a look at all processes of a busy machine may take as long.

    One that has just been forked is missed by the first looks.
    """
    now, looks, mark = [0.0], [], secrets.token_hex(16)

    def sleep(seconds):
        now[0] += 2 * KILL_S * (len(looks) <= num_blind)
        time.sleep(seconds)

    members = SandboxProcesses(mark, owns_descendants=False)
    stood = Overridden(time, monotonic=lambda: now[0], sleep=sleep)
    monkeypatch.setattr(process_tree, "time", stood)
    with subprocess.Popen(["sleep", "600"], env={MARK: mark}) as member:
        wait_until(members.alive, "a process with the mark")
        look = members.alive

        def slow():
            looks.append([] if len(looks) < num_blind else look())
            now[0] += 2 * KILL_S * (len(looks) == 1)
            return looks[-1]

        members.alive = slow
        try:
            members.kill(reaped_elsewhere=None)
        finally:
            member.kill()

    assert -signal.SIGKILL == member.returncode
