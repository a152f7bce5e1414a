"""A whole run in this process and those it starts, from its file to its summary."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import uvloop

from gyre.controller import resume as resuming
from gyre.controller.controller import JOURNAL_EVENTS, Controller
from gyre.controller.layout import check_layout
from gyre.controller.process_specs import sandbox_for
from gyre.controller.run_dir import RunDir
from gyre.controller.run_loop import Listener
from gyre.controller.runfile import RunFile
from gyre.controller.using import ResourceSampler
from gyre.journal.reading import read
from gyre.rollout.placing import check
from gyre.scheduler.messages import StopReason
from gyre.types.run_events import RunEnded


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
        using=ResourceSampler.found(),
    )
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(controller.work())


def folder_of(run: RunFile) -> Path:
    return Path(run.config.run.place)


def clear_away(folder: Path) -> None:
    """A run that is over leaves no process, also where its controller died while it ended."""
    asyncio.run(resuming.kill_leftovers(RunDir(run=folder, share=folder), proxy=True))


def heard_so_far(run: RunFile) -> list[tuple[float, Any]]:
    """Every fact of a run's journal with its time, for who looks at it from now on; that it was
    stopped before is none of them, because it goes on."""
    found = read(folder_of(run) / "journal", kinds=JOURNAL_EVENTS).facts(JOURNAL_EVENTS)
    return [(now, fact) for now, fact in found if not isinstance(fact, RunEnded)]
