"""A whole run in this process and those it starts, from its file to its summary."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import uvloop

from gyre.journal.reading import read
from gyre.plan.messages import StopReason
from gyre.run import resuming
from gyre.run.compared import compared
from gyre.run.controller import KINDS, Controller
from gyre.run.host import Listener
from gyre.run.layout import check_layout
from gyre.run.placing import check
from gyre.run.plans import Places, sandbox_for
from gyre.run.rollout_report import curve
from gyre.run.runfile import RunFile
from gyre.run.using import Using
from gyre.watch.summary_run import summary
from gyre.words.events import RunEnded


def train(
    run: RunFile,
    *,
    resumes: bool = False,
    listeners: Sequence[Listener] = (),
    tick: Callable[[float], None] | None = None,
) -> StopReason | None:
    """Why the run ended; None when it was told to. It goes on where it was if it `resumes`."""
    check_layout(run.loaded, resumes=resumes)
    check(sandbox_for(run.config.sandbox))
    controller = Controller(
        run,
        folder_of(run),
        resumes=resumes,
        listeners=listeners,
        tick=tick,
        using=Using.found(),
    )
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(controller.work())


def folder_of(run: RunFile) -> Path:
    return Path(run.config.run.place)


def clear_away(folder: Path) -> None:
    """A run that is over leaves no process, also where its controller died while it ended."""
    asyncio.run(resuming.clear_away(Places(run=folder, share=folder), proxy=True))


def heard_so_far(run: RunFile) -> list[tuple[float, Any]]:
    """Every fact of a run's journal with its time, for who looks at it from now on; that it was
    stopped before is none of them, because it goes on."""
    found = read(folder_of(run) / "journal", kinds=KINDS).facts(KINDS)
    return [(now, fact) for now, fact in found if not isinstance(fact, RunEnded)]


def report(run: RunFile, *, encoding: str | None = None) -> str:
    """What a run's journal says of it, and what other placements would have made of its work.

    Behind it the curve of its held-out scores, if it was measured.
    """
    reading = read(folder_of(run) / "journal", kinds=KINDS)
    page = summary(reading, compared(reading), encoding=encoding)
    return "\n".join([page, *(f"  {line}" for line in curve(folder_of(run)))])
