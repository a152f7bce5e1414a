"""How a run stands, in a terminal, by its journal: once, or as it goes."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from gyre.observability.follower import RunFollower
from gyre.observability.history.faults import RunFault
from gyre.observability.history.run import RunHistory
from gyre.observability.history.state import RunState
from gyre.observability.terminal.charts import timeline
from gyre.observability.terminal.colors import cut, printed, safe
from gyre.observability.terminal.progress import WIDTH, Progress, block, ending, terminal_size
from gyre.observability.terminal.text import clock, many, spelled, spoken
from gyre.scheduler.messages import StopReason
from gyre.types.run_events import TOLD

MOST_FAULTS = 3
MOST_CELLS = 10
"""A timeline of more has no place on one screen."""
LOOK_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusSummary:
    """How a run stands, in a few words and as an exit status."""

    status: int
    """0: it runs, or has taken all its steps; 1: it stopped itself; 3: it has no controller."""
    text: str


def stands(followed: RunFollower[Any]) -> StatusSummary:
    """By what was recorded, and by who writes the journal now."""
    run = followed.run
    if run is not None and run.is_over and run.ended != TOLD:
        is_whole = run.scheduler.stopped is StopReason.FINISHED
        return StatusSummary(status=0 if is_whole else 1, text=ending(run))
    if (pid := followed.writer()) is not None:
        return StatusSummary(status=0, text=f"runs in process {pid}")
    text = f"nobody works on it; gyre resume {followed.place} goes on"
    return StatusSummary(status=3, text=text)


def screen(
    place: Path, *, colour: bool, encoding: str | None, width: int = WIDTH
) -> tuple[list[str], int]:
    """A run on one screen, and its exit status."""
    followed = RunFollower(place, RunHistory)
    history = followed.catch_up()
    found = stands(followed)
    lines = [cut(safe(f"{history.name}: {found.text}"), width), ""]
    lines += printed(block(history, history.now_s), width=width, colour=colour)
    if history.shape.num_cells <= MOST_CELLS and history.now_s > 0:
        lines += ["", *(cut(line, width) for line in timeline(history, width=width))]
    if faults := history.faults.rows:
        shown = [_fault(fault, width) for fault in faults[-MOST_FAULTS:]]
        lines += ["", many(len(faults), "fault"), *shown]
    return [spelled(line, encoding) for line in lines], found.status


def _fault(fault: RunFault, width: int) -> str:
    mended = fault.mended_at_s
    how = "" if mended is None else f", mended after {spoken(mended - fault.at_s)}"
    return cut(f"  {clock(fault.at_s):>8}  {safe(fault.text)}{how}", width)


def follow(
    place: Path,
    stream: TextIO,
    *,
    colour: bool,
    clock_s: Callable[[], float],
    sleep: Callable[[float], None],
) -> int:
    """Shows a run until it is over or has no controller any more; returns its exit status."""
    followed = RunFollower(place, RunState)
    progress: Progress | None = None
    heard_s = clock_s()
    while True:
        # Asked before it is read: what a writer that is gone wrote is in the journal by then.
        is_alone = followed.writer() is None
        entries = followed.read()
        run = followed.current()
        if run is not None:
            if progress is None or progress.run is not run:
                # What was there before is shown as it stands, and not line by line.
                run.record_all((entry.now, entry.event) for entry in entries)
                progress = Progress(stream, run, colour=colour)
            else:
                for entry in entries:
                    progress.record(entry.now, entry.event)
            if entries:
                heard_s = clock_s()
            progress.tick(run.now_s + (0.0 if is_alone else clock_s() - heard_s))
        if is_alone or (run is not None and run.is_over):
            return _leave(followed, stream)
        sleep(LOOK_S)


def _leave(followed: RunFollower[RunState], stream: TextIO) -> int:
    found = stands(followed)
    line = cut(safe(f"{followed.name}: {found.text}"), terminal_size(stream)[0])
    print(spelled(line, stream.encoding), file=stream)
    return found.status
