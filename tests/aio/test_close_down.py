"""A loop that is run by the one helper leaves nothing open: tasks, processes, pipes, threads."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from subprocess import PIPE

import pytest
import uvloop
from tests.waiting import PATIENCE_S, wait_until

from gyre.aio import run_loop, start_process

HOLDS_ON = "import os, time; pid = os.fork(); print(pid, flush=True) if pid else time.sleep(600)"
"""A program that ends at once, and whose child keeps its output open."""


@pytest.fixture(params=["asyncio", "uvloop"], autouse=True)
def run(request):
    # The library opens something for all loops with the first of them, and keeps it.
    uvloop.new_event_loop().close()
    factory = uvloop.new_event_loop if request.param == "uvloop" else None
    return lambda main: run_loop(main, loop_factory=factory)


def open_now():
    return {one.name for one in Path("/proc/self/fd").iterdir()}


def started(code):
    return start_process(sys.executable, "-S", "-c", code, stdin=PIPE, stdout=PIPE)


def test_it_gives_what_the_coroutine_gives_and_raises_what_it_raises(run):
    async def fails():
        raise KeyError("a")

    async def gives():
        return 7

    assert 7 == run(gives())
    with pytest.raises(KeyError, match="a"):
        run(fails())


def test_tasks_that_are_left_have_ended_with_those_that_they_start_meanwhile(run):
    ended = []
    tasks = []

    async def task(*names):
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(names[0])
            if names[1:]:
                tasks.append(asyncio.create_task(task(*names[1:])))

    async def main():
        tasks.append(asyncio.create_task(task("first", "second")))
        await asyncio.sleep(0)

    run(main())

    assert ["first", "second"] == ended
    assert [True, True] == [one.cancelled() for one in tasks]


def test_a_task_that_fails_while_it_is_cancelled_is_told_of(run):
    told = []

    async def task():
        try:
            await asyncio.Event().wait()
        finally:
            raise KeyError("a")

    async def main():
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: told.append(context["exception"]))
        tasks.append(asyncio.create_task(task()))
        await asyncio.sleep(0)

    tasks = []
    run(main())

    assert ["'a'"] == [str(one) for one in told]


def test_a_pipe_that_a_grandchild_holds_is_closed_with_the_process(run):
    async def main():
        process = await started(HOLDS_ON)
        pid = int(await process.stdout.readline())
        during = open_now()
        await process.close()
        return pid, len(during - open_now())

    before = open_now()
    pid, num_closed = run(main())
    os.kill(pid, signal.SIGKILL)

    assert 1 <= num_closed
    assert open_now() <= before


def test_a_process_that_nobody_closed_ends_with_the_loop(run):
    async def main():
        process = await started("import time; print(1, flush=True); time.sleep(600)")
        await process.stdout.readline()
        return process

    before = open_now()
    process = run(main())

    assert -signal.SIGKILL == process.returncode
    assert open_now() <= before


def test_what_nobody_reads_does_not_keep_a_pipe_open(run):
    async def main():
        process = await started("import time; time.sleep(600)")
        process.stdin.write(b"x" * 2**22)
        process.stdin.close()
        await process.close()

    before = open_now()
    run(main())

    assert open_now() <= before


def test_threads_of_the_loop_have_ended(run):
    threads = []

    async def main():
        await asyncio.to_thread(lambda: threads.append(threading.current_thread()))

    run(main())

    assert not threads[0].is_alive()


def test_a_status_is_heard_although_the_process_is_closed(run):
    async def main():
        process = await started("raise SystemExit(3)")
        status = await asyncio.wait_for(process.wait(), PATIENCE_S)
        await process.close()
        await process.close()
        return status, process.returncode

    assert (3, 3) == run(main())
    wait_until(lambda: not [one for one in threading.enumerate() if "waitpid" in one.name])


LEAVES = """
import uvloop
from subprocess import DEVNULL, PIPE
from gyre.aio import run_loop, start_process

async def main():
    pipes = {"stdin": PIPE, "stdout": PIPE, "stderr": DEVNULL}
    process = await start_process("sleep", "600", **pipes, outlives_loop=True)
    return process.pid

print(run_loop(main(), loop_factory=uvloop.new_event_loop))
"""


def test_a_process_that_outlives_the_loop_goes_on_when_its_parent_has_ended():
    command = [sys.executable, "-c", LEAVES]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    pid = int(done.stdout)
    state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    os.kill(pid, signal.SIGKILL)

    assert (0, "") == (done.returncode, done.stderr)
    # It may still be reading itself from the disk.
    assert state not in "ZX"
