"""Train a model on what agents do with it: one run, from its file to its summary."""

import argparse
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gyre.cli.arguments import takes_values

if TYPE_CHECKING:
    from gyre.controller.run_dir import RunFile
    from gyre.observability.trackers.registry import Trackers
    from gyre.scheduler.messages import StopReason

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
    from gyre.controller.run_dir import read_run, refuse_changes, require_no_writer, standing

    run = read_run(args.config, args.overrides)
    found = standing(folder_of(run))
    if found is None:
        return train_to_end(run)
    print(f"gyre train: there is a run in {folder_of(run)}: {found}", flush=True)
    refuse_changes(folder_of(run), run)
    if found.stopped is not None:
        return print_summary(run, found.stopped)
    if not (args.resume or _confirm()):
        print(f"  gyre resume {folder_of(run)} goes on with it; run.folder names another place")
        return 2
    require_no_writer(folder_of(run), take_over=False)
    return train_to_end(run, resumes=True)


def train_to_end(run: "RunFile", *, resumes: bool = False) -> int:
    """Shows the run while it goes, and its summary; returns the exit status."""
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
    trackers = open_run_trackers(run, before=before if resumes else None)
    try:
        with _serve_page(folder_of(run)):
            listeners = [progress.record, RunMetrics(trackers, before=before).record]
            reason = train(run, resumes=resumes, listeners=listeners, tick=progress.tick)
    finally:
        progress.clear()
        trackers.close()
    return print_summary(run, reason)


def open_run_trackers(run: "RunFile", *, before: Sequence[tuple[float, Any]] | None) -> "Trackers":
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
def _serve_page(folder: Path) -> Iterator[None]:
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


def print_summary(run: "RunFile", reason: "StopReason | None") -> int:
    """Says how a run ended, or that it was asked to stop; returns the exit status.

    The weights that a finished one ends with are measured first, if that is due and was not done.
    """
    import sys

    from gyre.controller.main import folder_of
    from gyre.scheduler.messages import StopReason

    failed = _measure_held_out(run) if reason is StopReason.FINISHED else None
    print(summary_of(run, encoding=sys.stdout.encoding))
    if failed is not None:
        print(f"  the run has finished, but its last weights were not measured: {failed}")
        print(f"  gyre resume {folder_of(run)} goes on with that")
    if reason is None:
        return 130
    return 0 if reason is StopReason.FINISHED else 1


def summary_of(run: "RunFile", *, encoding: str | None = None) -> str:
    """What a run's journal says of it, and what other placements would have made of its work.

    Behind it the curve of its held-out scores, if it was measured.
    """
    from gyre.controller.main import folder_of
    from gyre.evals.results import curve
    from gyre.journal.journal import read
    from gyre.observability.terminal.summary import summary
    from gyre.observability.what_if import compared
    from gyre.scheduler.replay import JOURNAL_EVENTS

    reading = read(folder_of(run) / "journal", kinds=JOURNAL_EVENTS)
    page = summary(reading, compared(reading), encoding=encoding)
    return "\n".join([page, *(f"  {line}" for line in curve(folder_of(run)))])


def _measure_held_out(run: "RunFile") -> str | None:
    """Runs the held-out tasks on the last weights, if that is due; returns why that failed."""
    from gyre.controller.main import folder_of
    from gyre.evals.runner import due, why_not

    plan = due(run.config, folder_of(run))
    if plan is None:
        return None
    print(f"  measuring version {plan.weights.version} on held-out tasks", flush=True)
    return why_not(plan)


def _confirm() -> bool:
    """Asks a user at a terminal."""
    import sys

    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return False
    return input("  go on with it? [y/N] ").strip().lower() in ("y", "yes")
