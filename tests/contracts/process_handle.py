"""What every handle of a process promises; each promise is one function."""

import asyncio
import signal
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from tests.waiting import PATIENCE_S

from gyre.types.protocols import LOST, ProcessHandle

SOON_S = 0.05


class Subject(Protocol):
    """Starts processes that run until a signal ends them."""

    knows_status: bool
    """It is told with which status a process has ended."""

    def started(self, *, ignores_term: bool = False) -> AbstractAsyncContextManager[ProcessHandle]:
        """One that runs, and that only SIGKILL ends if it ignores SIGTERM."""


def status(subject: Subject, number: signal.Signals) -> int:
    return -number if subject.knows_status else LOST


async def one_that_is_stopped_ends_by_sigterm(subject: Subject) -> None:
    async with subject.started() as process:
        assert not process.is_over
        await process.stop()

        assert process.is_over
        assert status(subject, signal.SIGTERM) == await process.wait()


async def one_that_does_not_end_in_time_is_killed(subject: Subject) -> None:
    async with subject.started(ignores_term=True) as process:
        process.signal(signal.SIGTERM)
        await process.end(SOON_S)

        assert process.is_over
        assert status(subject, signal.SIGKILL) == await process.wait()


async def one_that_ends_in_time_is_not_killed(subject: Subject) -> None:
    async with subject.started() as process:
        ending = asyncio.ensure_future(process.end(PATIENCE_S))
        await asyncio.sleep(0)
        process.signal(signal.SIGTERM)
        await ending

        assert status(subject, signal.SIGTERM) == await process.wait()


async def several_may_wait_for_one_that_is_killed(subject: Subject) -> None:
    async with subject.started(ignores_term=True) as process:
        waiting = [asyncio.ensure_future(process.wait()) for _ in range(2)]
        given_up = asyncio.ensure_future(process.wait())
        await asyncio.sleep(0)
        given_up.cancel()
        await process.kill()

        assert [status(subject, signal.SIGKILL)] * 2 == await asyncio.gather(*waiting)


async def one_that_has_ended_may_be_ended_again(subject: Subject) -> None:
    async with subject.started() as process:
        await process.kill()
        before = await process.wait()
        process.signal(signal.SIGTERM)
        await process.stop()
        await process.kill()

        assert before == await process.wait()


PROMISES = (
    one_that_is_stopped_ends_by_sigterm,
    one_that_does_not_end_in_time_is_killed,
    one_that_ends_in_time_is_not_killed,
    several_may_wait_for_one_that_is_killed,
    one_that_has_ended_may_be_ended_again,
)
