"""Train a model on what agents do with it: one run, from its file to its summary."""

import argparse
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gyre.cli.arguments import takes_values

ENDS = {
    0: "all steps were taken",
    1: "the run stopped itself before that",
    2: "the run file, or what it names, cannot be used as it is",
    130: "interrupted; `gyre resume` goes on",
}


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "config", type=Path, metavar="FILE", help="the run's file, as gyre config check reads it"
    )
    takes_values(parser)
    parser.add_argument(
        "--resume", action="store_true", help="go on with the run, if it was begun before"
    )


def run(args: argparse.Namespace) -> int:
    from gyre.controller.main import folder_of
    from gyre.controller.run_file import read_run
    from gyre.controller.run_status import refuse_changes, require_no_writer, standing

    run = read_run(args.config, args.overrides)
    found = standing(folder_of(run))
    if found is None:
        return trained(run)
    print(f"gyre train: there is a run in {folder_of(run)}: {found}", flush=True)
    refuse_changes(folder_of(run), run)
    if found.stopped is not None:
        return shown(run, found.stopped)
    if not (args.resume or _agreed()):
        print(f"  gyre resume {folder_of(run)} goes on with it; run.folder names another place")
        return 2
    require_no_writer(folder_of(run), take_over=False)
    return trained(run, resumes=True)


def trained(run: Any, *, resumes: bool = False) -> int:
    """The run of a file, to its end, shown while it goes, and its summary."""
    import sys

    from gyre.controller.main import folder_of, heard_so_far, train
    from gyre.observability.history.state import RunState
    from gyre.observability.metrics import RunMetrics
    from gyre.observability.terminal.colors import wants_colour
    from gyre.observability.terminal.progress import Progress

    cells, name = run.config.cells, run.config.run.name
    print(f"gyre {'resume' if resumes else 'train'}: {name} in {folder_of(run)}")
    print(f"  starting {cells.count} cells of {run.config.model.name}, and a proxy", flush=True)
    colour = wants_colour(sys.stdout)
    state = RunState(run.shape, name=name)
    before = heard_so_far(run) if resumes else []
    state.record_all(before)
    progress = Progress(sys.stdout, state, colour=colour)
    folder_of(run).mkdir(parents=True, exist_ok=True, mode=0o700)
    trackers = tracked(run, before=before if resumes else None)
    try:
        with _page(folder_of(run)):
            listeners = [progress.record, RunMetrics(trackers, before=before).record]
            reason = train(run, resumes=resumes, listeners=listeners, tick=progress.tick)
    finally:
        progress.clear()
        trackers.close()
    return shown(run, reason)


def tracked(run: Any, *, before: Sequence[tuple[float, Any]] | None) -> Any:
    """The run's trackers, with its settings; `before` is what a resumed run did."""
    from gyre.config.toml import settings_of
    from gyre.controller.main import folder_of
    from gyre.observability.metrics import next_step
    from gyre.observability.trackers.registry import open_trackers

    return open_trackers(
        run.config.trackers,
        name=run.config.run.name,
        folder=folder_of(run),
        settings=settings_of(run.config),
        resumed_at=None if before is None else next_step(before),
    )


@contextmanager
def _page(folder: Path) -> Iterator[None]:
    """A user at a terminal has a page of the run while it goes, and its link."""
    import sys

    from gyre.observability.dashboard.server import shown_beside

    if not sys.stdout.isatty():
        yield
        return
    with shown_beside(folder) as link:
        if link is not None:
            print(f"  watch it: {link}", flush=True)
        yield


def shown(run: Any, reason: object) -> int:
    """The summary of a run that is over, or was asked to stop.

    The weights that a finished one ends with are measured first, if that is due and was not done.
    """
    import sys

    from gyre.controller.main import folder_of
    from gyre.scheduler.messages import StopReason

    failed = _measured(run) if reason is StopReason.FINISHED else None
    print(report(run, encoding=sys.stdout.encoding))
    if failed is not None:
        print(f"  the run has finished, but its last weights were not measured: {failed}")
        print(f"  gyre resume {folder_of(run)} goes on with that")
    if reason is None:
        return 130
    return 0 if reason is StopReason.FINISHED else 1


def report(run: Any, *, encoding: str | None = None) -> str:
    """What a run's journal says of it, and what other placements would have made of its work.

    Behind it the curve of its held-out scores, if it was measured.
    """
    from gyre.controller.main import folder_of
    from gyre.evals.results import curve
    from gyre.journal.reader import read
    from gyre.observability.terminal.summary import summary
    from gyre.observability.what_if import compared
    from gyre.scheduler.replay import JOURNAL_EVENTS

    reading = read(folder_of(run) / "journal", kinds=JOURNAL_EVENTS)
    page = summary(reading, compared(reading), encoding=encoding)
    return "\n".join([page, *(f"  {line}" for line in curve(folder_of(run)))])


def _measured(run: Any) -> str | None:
    """Why the last weights could not be; None: they are, or need not be."""
    from gyre.controller.main import folder_of
    from gyre.evals.runner import due, why_not

    plan = due(run.config, folder_of(run))
    if plan is None:
        return None
    print(f"  measuring version {plan.weights.version} on held-out tasks", flush=True)
    return why_not(plan)


def _agreed() -> bool:
    """A user at a terminal says so."""
    import sys

    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return False
    return input("  go on with it? [y/N] ").strip().lower() in ("y", "yes")
