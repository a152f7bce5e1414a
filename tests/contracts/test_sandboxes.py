"""The sandbox contract, kept by processes of this machine."""

import asyncio
import secrets
import subprocess

import pytest
from tests.contracts import sandbox as suite
from tests.run.supervised import is_alive

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


@pytest.mark.parametrize("promise", suite.EVERY_SANDBOX, ids=lambda promise: promise.__name__)
def test_processes_keep_the_promise_that(promise, tmp_path):
    async def keep():
        async with asyncio.timeout(suite.PATIENCE_S):
            await promise(Processes(tmp_path))

    asyncio.run(keep())


def test_processes_of_others_are_left_alone(tmp_path):
    """A child of this very process that is not the sandbox's."""
    with subprocess.Popen(["sleep", "60"]) as stranger:

        async def keep():
            await suite.killing_ends_what_hides_and_what_does_not_listen(Processes(tmp_path))

        asyncio.run(keep())
        was_alive = stranger.poll() is None
        stranger.kill()

    assert was_alive
