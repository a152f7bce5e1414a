"""A whole run in this process and those it starts, from its file to its summary."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

import uvloop

from gyre.journal.reading import read
from gyre.plan.messages import StopReason
from gyre.run.compared import compared
from gyre.run.controller import KINDS, Controller
from gyre.run.host import Listener
from gyre.run.placing import check
from gyre.run.plans import sandbox_for
from gyre.run.runfile import RunFile
from gyre.watch.summary_run import summary


def train(
    run: RunFile,
    *,
    listeners: Sequence[Listener] = (),
    tick: Callable[[float], None] | None = None,
) -> StopReason | None:
    """Why the run ended; None when it was told to."""
    check(sandbox_for(run.config.sandbox))
    controller = Controller(run, folder_of(run), listeners=listeners, tick=tick)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(controller.work())


def folder_of(run: RunFile) -> Path:
    return Path(run.config.run.place)


def report(run: RunFile, *, encoding: str | None = None) -> str:
    """What a run's journal says of it, and what other placements would have made of its work."""
    reading = read(folder_of(run) / "journal", kinds=KINDS)
    return summary(reading, compared(reading), encoding=encoding)
