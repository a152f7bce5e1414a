"""`gyre train`/`resume`: preflight checks, then the controller."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import uvloop

from gyre.aio import run_loop
from gyre.controller import resume
from gyre.controller.controller import Controller
from gyre.controller.preflight import require_startable
from gyre.controller.process_specs import sandbox_for
from gyre.controller.resource_usage import ResourceSampler
from gyre.controller.run_dir import RunDir, RunFile
from gyre.controller.run_loop import Display, Listener
from gyre.journal.journal import read
from gyre.rollout.environment import check
from gyre.scheduler.messages import StopReason
from gyre.scheduler.replay import JOURNAL_EVENTS
from gyre.types.run_events import RunEnded


def require_ready(run: RunFile, *, resumes: bool = False) -> None:
    """Raises ConfigError for what no run can begin with here, before anything of it is there."""
    require_startable(run, resumes=resumes)
    check(sandbox_for(run.config.sandbox))


def train(
    run: RunFile,
    *,
    resumes: bool = False,
    listeners: Sequence[Listener] = (),
    display: Display | None = None,
) -> StopReason | None:
    """Why the run ended; None if it was asked to stop. With `resumes` it goes on where it was.

    `require_ready` is asked before.
    """
    controller = Controller(
        run,
        folder_of(run),
        resumes=resumes,
        listeners=listeners,
        display=display,
        usage=ResourceSampler.found(),
    )
    return run_loop(controller.work(), loop_factory=uvloop.new_event_loop)


def folder_of(run: RunFile) -> Path:
    return Path(run.config.run.place)


def clear_away(folder: Path) -> None:
    """A run that is over leaves no process, also where its controller died while it ended."""
    run_loop(resume.kill_leftovers(RunDir(run=folder, share=folder), proxy=True))


def heard_so_far(run: RunFile) -> list[tuple[float, Any]]:
    """Every fact of a run's journal with its time, for who looks at it from now on; that it was
    stopped before is none of them, because it goes on."""
    found = read(folder_of(run) / "journal", kinds=JOURNAL_EVENTS).facts(JOURNAL_EVENTS)
    return [(now, fact) for now, fact in found if not isinstance(fact, RunEnded)]
