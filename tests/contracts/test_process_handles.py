"""The contract of process handles, kept by each kind of them and by the fake."""

import signal
from contextlib import asynccontextmanager

import pytest
import uvloop
from tests.contracts import process_handle as suite
from tests.contracts.cluster import is_alive
from tests.waiting import PATIENCE_S, until

from gyre.aio import run_loop
from gyre.cluster.fork_client import ForkClient
from gyre.cluster.process import AdoptedProcess, SpawnedProcess
from gyre.testing.processes import FakeProcess

SLEEP = "import time; print('ready here', flush=True); time.sleep(600)"
PRINTS_PID = "'ready', os.getpid()"
STUBBORN = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {SLEEP}"


class Fake:
    knows_status = True

    def __init__(self, folder):
        pass

    @asynccontextmanager
    async def started(self, *, ignores_term=False):
        yield FakeProcess(ends_by=() if ignores_term else (signal.SIGTERM,))


class Spawned:
    knows_status = True

    def __init__(self, folder):
        self._log = folder / "log"

    @asynccontextmanager
    async def started(self, *, ignores_term=False):
        code = STUBBORN if ignores_term else SLEEP
        process = await SpawnedProcess.start("x", ("-c", code), self._log)
        assert "here" == await process.ready(PATIENCE_S)
        yield process
        await process.kill()


class Adopted(Spawned):
    knows_status = False

    @asynccontextmanager
    async def started(self, **how):
        async with super().started(**how) as process:
            yield AdoptedProcess("x", process.pid, self._log)


class Forked:
    knows_status = True

    def __init__(self, folder):
        self._folder = folder

    @asynccontextmanager
    async def started(self, *, ignores_term=False):
        client = await ForkClient.open("tests.cluster.support.forked", self._folder / "server.log")
        what = ["ignore SIGTERM"] if ignores_term else ["serve"]
        process = await client.fork("x", what, log=self._folder / "log")
        assert "http://here" == await process.ready(PATIENCE_S)
        yield process
        await process.kill()
        await client.close()


REAL = (Spawned, Forked, Adopted)


@pytest.mark.parametrize("promise", suite.PROMISES, ids=lambda promise: promise.__name__)
@pytest.mark.parametrize(
    "subject", [Fake, *(pytest.param(one, marks=pytest.mark.slow) for one in REAL)]
)
def test_every_handle_keeps_the_contract(subject, promise, tmp_path):
    # The loop of a real controller, which starts processes in a way of its own.
    run_loop(promise(subject(tmp_path)), loop_factory=uvloop.new_event_loop)


@pytest.mark.slow
def test_what_a_process_started_ends_with_it(tmp_path):
    """Also when the process itself has ended by then."""
    code = f"import os; os.fork() and os._exit(3); {STUBBORN}".replace("'ready here'", PRINTS_PID)

    async def work():
        process = await SpawnedProcess.start("x", ("-c", code), tmp_path / "log")
        child = int(await process.ready(PATIENCE_S))
        assert (3, True) == (await process.wait(), is_alive(child))
        await process.stop()
        await until(lambda: not is_alive(child), "the end of what it started")

    run_loop(work(), loop_factory=uvloop.new_event_loop)


@pytest.mark.slow
def test_a_number_that_is_another_processes_by_now_gets_no_signal(tmp_path):
    """An adopted process is known by its log."""

    async def work():
        async with Spawned(tmp_path).started() as other:
            gone = AdoptedProcess("proxy", other.pid, tmp_path / "another.log")
            assert gone.is_over
            await gone.stop()
            await gone.kill()
            assert not other.is_over

    run_loop(work(), loop_factory=uvloop.new_event_loop)
