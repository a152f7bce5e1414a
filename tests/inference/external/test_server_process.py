"""A server and all its own end with whoever started it, whatever becomes of that."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.waiting import PATIENCE_S, until

from gyre.inference.external.process import ServerChild
from gyre.types.errors import EngineError

WORKER = "import os, sys, time; open(sys.argv[1], 'w').write(str(os.getpid())); time.sleep(600)"
SERVER = (
    "import subprocess, sys, time;"
    f"subprocess.Popen([sys.executable, '-c', {WORKER!r}, sys.argv[1]]);"
    "time.sleep(600)"
)
"""A server with a worker that does not end by itself, and writes down who it is."""
ENDING = SERVER.removesuffix("time.sleep(600)") + (
    "exec('while not (__import__(\\'os\\').path.exists(sys.argv[1])): time.sleep(0.02)')"
)
"""A server that ends as soon as its worker has said who it is."""
OWNER = """
import asyncio, sys
from pathlib import Path
from tests.waiting import PATIENCE_S
from gyre.inference.external.process import ServerChild
async def main():
    command = (sys.executable, "-c", sys.argv[1], sys.argv[2])
    await ServerChild.start("s", command, {}, folder=Path(sys.argv[3]))
    await asyncio.sleep(600)
asyncio.run(main())
"""


async def worker_of(path):
    await until(lambda: path.exists() and path.read_text(), "the worker says who it is")
    return int(path.read_text())


async def wait_gone(pid):
    await until(lambda: not Path(f"/proc/{pid}").exists(), "the worker is gone")


def run(doing):
    async def scenario():
        async with asyncio.timeout(PATIENCE_S):
            return await doing

    return asyncio.run(scenario())


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "folder"
    made.mkdir()
    (made / "key").write_text("secret")
    return made


async def start(folder, code, *more):
    return await ServerChild.start("s", (sys.executable, "-c", code, *more), {}, folder=folder)


def test_whoever_ends_it_ends_its_workers_and_its_folder(folder, tmp_path):
    async def scenario():
        child = await start(folder, SERVER, str(tmp_path / "worker"))
        worker = await worker_of(tmp_path / "worker")
        await child.end()
        await wait_gone(worker)
        return child.is_over

    assert run(scenario())
    assert not folder.exists()


def test_its_folder_goes_although_its_whole_group_was_killed(folder):
    async def scenario():
        child = await start(folder, "import os, signal; os.killpg(0, signal.SIGKILL)")
        await child.wait()
        await child.end()

    run(scenario())

    assert not folder.exists()


def test_it_ends_when_its_owner_is_killed(folder, tmp_path):
    worker_file = tmp_path / "worker"
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, SERVER, str(worker_file), str(folder)], start_new_session=True
    )
    worker = run(worker_of(worker_file))
    os.killpg(owner.pid, signal.SIGKILL)
    owner.wait()
    run(wait_gone(worker))

    assert not folder.exists()


def test_a_server_that_ends_leaves_no_worker(folder, tmp_path):
    async def scenario():
        child = await start(folder, ENDING, str(tmp_path / "worker"))
        await child.wait()
        await wait_gone(await worker_of(tmp_path / "worker"))
        return child.is_over

    assert run(scenario())
    assert not folder.exists()


def test_a_server_that_ends_while_it_starts_is_not_waited_for(folder):
    async def never():
        return False

    async def scenario():
        child = await start(folder, "raise SystemExit(3)")
        try:
            await child.wait_answering(never, PATIENCE_S)
        finally:
            await child.end()

    with pytest.raises(EngineError, match="ended while starting"):
        run(scenario())


def test_a_server_that_says_nothing_is_given_up(folder):
    async def refuses():
        raise EngineError("not yet")

    async def scenario():
        child = await start(folder, "import time; time.sleep(600)")
        try:
            await child.wait_answering(refuses, 0.1)
        finally:
            await child.end()

    with pytest.raises(EngineError, match=r"did not answer within 0\.1 s"):
        run(scenario())
