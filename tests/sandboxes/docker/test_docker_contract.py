"""The sandbox contract, kept by containers."""

import asyncio
import secrets
from pathlib import Path

import pytest
from tests.contracts import sandbox as suite
from tests.controller.executions.supervised import is_alive
from tests.sandboxes.docker.daemon import IMAGE
from tests.waiting import PATIENCE_S

from gyre.sandboxes.docker.container import Container
from gyre.sandboxes.docker.sandbox import DockerSandbox


class Containers:
    def __init__(self, folder, socket):
        self.workspace = folder / "workspace"
        self.workspace.mkdir()
        self._folder = folder
        self._socket = socket
        self._marks = []

    def make(self):
        self._marks.append(secrets.token_hex(16))
        place = Container(
            folder=self._folder / "place",
            home=self._folder / "home",
            image=IMAGE,
            socket=self._socket,
        )
        return DockerSandbox(self._marks[-1], place)

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


@pytest.mark.parametrize("promise", suite.EVERY_SANDBOX, ids=lambda promise: promise.__name__)
def test_containers_keep_the_promise_that(promise, tmp_path, docker):
    async def keep():
        async with asyncio.timeout(2 * PATIENCE_S):
            await promise(Containers(tmp_path, docker))

    asyncio.run(keep())
