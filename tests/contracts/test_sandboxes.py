"""The sandbox contract, kept by processes of this machine, and by those in namespaces."""

import asyncio
import secrets
import subprocess
from pathlib import Path

import pytest
from tests.contracts import sandbox as suite
from tests.controller.executions.supervised import is_alive
from tests.waiting import PATIENCE_S

from gyre.sandboxes.local.sandbox import LocalSandbox, SandboxLayout
from gyre.sandboxes.process import ProcessSandbox
from gyre.sandboxes.process_tree import SandboxProcesses
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


class Namespaces:
    def __init__(self, folder):
        self.workspace = folder / "workspace"
        self.workspace.mkdir()
        self._folder = folder
        self._marks = []

    def make(self):
        self._marks.append(secrets.token_hex(16))
        place = SandboxLayout(folder=self._folder / self._marks[-1], home=self._folder / "home")
        return LocalSandbox(self._marks[-1], place)

    def is_alive(self, pid):
        return any(pid == inside and is_alive(outside) for inside, outside in self._known())

    def _known(self):
        """Pids inside and outside of all processes that bear one of the marks."""
        for folder in Path("/proc").iterdir():
            if folder.name.isdigit():
                try:
                    environment = (folder / "environ").read_text(errors="replace")
                    status = (folder / "status").read_text()
                except OSError:
                    continue
                if any(mark in environment for mark in self._marks):
                    pids = status.partition("NSpid:")[2].partition("\n")[0].split()
                    yield int(pids[-1]), int(folder.name)


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
