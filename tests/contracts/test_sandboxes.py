"""The sandbox contract, kept by processes of this machine, and by those in namespaces."""

import asyncio
import secrets
import subprocess
from pathlib import Path

import pytest
from tests.contracts import sandbox as suite
from tests.run.supervised import is_alive

from gyre.backends.sandboxes.local import LocalSandbox, Place
from gyre.backends.sandboxes.process import ProcessSandbox


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
        place = Place(folder=self._folder / self._marks[-1], home=self._folder / "home")
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
        async with asyncio.timeout(suite.PATIENCE_S):
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
