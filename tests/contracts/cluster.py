"""What every cluster promises behind the Cluster port; each promise is one function."""

import asyncio
import signal
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Protocol

from tests.waiting import PATIENCE_S, until

from gyre.types.protocols import Cluster, NodeProcess

NOBODY = 2**22 + 1
"""No machine has a process of this number."""
ECHO = "import sys\nfor line in sys.stdin: print('heard', line, end='', flush=True)\nprint('over')"
TALK = "import sys; print('one'); print('two', flush=True); sys.stderr.write('to the log')"
SLEEP = "import time; print('up', flush=True); time.sleep(600)"
CHILD = f"""
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", {SLEEP!r}], stdout=subprocess.DEVNULL)
print(child.pid, flush=True)
child.wait()
"""


class Subject(Protocol):
    """A cluster that can be opened, and a folder that all of it sees."""

    folder: Path

    def opened(self) -> AbstractAsyncContextManager[Cluster]: ...


async def first_line(process: NodeProcess) -> str:
    async with asyncio.timeout(PATIENCE_S):
        async for line in process.lines():
            return line.decode().strip()
    return ""


def is_alive(pid: int) -> bool:
    """Also of a fake node, whose processes are this machine's."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


async def what_a_process_prints_is_heard_and_so_is_its_status(subject: Subject) -> None:
    async with subject.opened() as cluster:
        spot = await cluster.cell(0)
        log = subject.folder / "logs" / "a.log"
        process = await spot.spawn(("-c", f"{TALK}; sys.exit(7)"), log=str(log))
        lines = [line async for line in process.lines()]

        assert [b"one\n", b"two\n"] == lines
        assert 7 == await process.wait()
        assert process.is_over
    assert "to the log" == log.read_text()


async def what_a_process_is_told_reaches_it_until_nothing_more_comes(subject: Subject) -> None:
    async with subject.opened() as cluster:
        spot = await cluster.agents()
        process = await spot.spawn(("-c", ECHO), log=str(subject.folder / "b.log"))
        await process.tell(b"x\n")
        await process.tell(b"y\n")
        process.hang_up()
        lines = [line async for line in process.lines()]

        assert [b"heard x\n", b"heard y\n", b"over\n"] == lines
        assert 0 == await process.wait()


async def a_signal_reaches_one_process_or_the_group_that_it_leads(subject: Subject) -> None:
    async with subject.opened() as cluster:
        spot = await cluster.cell(0)
        process = await spot.spawn(("-c", CHILD), log=str(subject.folder / "c.log"))
        child = int(await first_line(process))
        spot.signal(process.pid, signal.SIGTERM)
        status = await process.wait()
        was_alive = is_alive(child)
        spot.signal(process.pid, signal.SIGKILL, group=True)
        await until(lambda: not is_alive(child))
        # One that is gone is not told, and nobody hears of that.
        spot.signal(NOBODY, signal.SIGTERM)

        assert (-signal.SIGTERM, True) == (status, was_alive)


async def a_process_is_known_by_its_log_wherever_it_is(subject: Subject) -> None:
    async with subject.opened() as cluster:
        spot, log = await cluster.agents(), subject.folder / "d.log"
        process = await spot.spawn(("-c", SLEEP), log=str(log))
        assert "up" == await first_line(process)
        found = [
            await spot.is_running(process.pid, str(one)) for one in (log, subject.folder / "other")
        ]
        cluster.signal_log_holder(str(subject.folder / "other"), signal.SIGKILL)
        cluster.signal_log_holder(str(log), signal.SIGUSR1)
        status = await process.wait()

        assert ([True, False], -signal.SIGUSR1) == (found, status)
        assert not await spot.is_running(process.pid, str(log))


async def a_cell_stays_where_it_is_and_many_start_at_once(subject: Subject) -> None:
    async with subject.opened() as cluster:
        spots = await asyncio.gather(*(cluster.cell(one) for one in (0, 1)))
        again = await cluster.cell(1)
        started = await asyncio.gather(
            *(
                spot.spawn(("-c", f"print({number})"), log=str(subject.folder / f"{number}.log"))
                for number in range(6)
                for spot in spots
            )
        )
        said = await asyncio.gather(*(first_line(one) for one in started))
        await asyncio.gather(*(one.wait() for one in started))

        assert again is spots[1]
        assert [str(number) for number in range(6) for _ in spots] == said
        assert all(spot.host for spot in spots)
        assert not any(spot.is_lost for spot in spots)


PROMISES = (
    what_a_process_prints_is_heard_and_so_is_its_status,
    what_a_process_is_told_reaches_it_until_nothing_more_comes,
    a_signal_reaches_one_process_or_the_group_that_it_leads,
    a_process_is_known_by_its_log_wherever_it_is,
    a_cell_stays_where_it_is_and_many_start_at_once,
)
