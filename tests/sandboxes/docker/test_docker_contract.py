"""The sandbox contract, kept by containers."""

import asyncio

import pytest
from tests.contracts import sandbox as suite
from tests.sandboxes.support.daemon import IMAGE
from tests.waiting import PATIENCE_S

from gyre.sandboxes.docker.container import Container
from gyre.sandboxes.docker.sandbox import DockerSandbox


class Containers(suite.InNamespaces):
    def __init__(self, folder, socket):
        super().__init__(folder)
        self._socket = socket

    def make(self):
        place = Container(
            folder=self.folder / "place",
            home=self.folder / "home",
            image=IMAGE,
            socket=self._socket,
        )
        return DockerSandbox(self.mark(), place)


@pytest.mark.parametrize("promise", suite.EVERY_SANDBOX, ids=lambda promise: promise.__name__)
def test_containers_keep_the_promise_that(promise, tmp_path, docker):
    async def keep():
        async with asyncio.timeout(2 * PATIENCE_S):
            await promise(Containers(tmp_path, docker))

    asyncio.run(keep())
