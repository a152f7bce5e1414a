"""A report from run folders: journals read, trees sized, the work simulated elsewhere.

Rule 1: nothing of a run is written or locked, so that a report can be made while it goes.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gyre.aio import run_loop
from gyre.journal.journal import path_of, read
from gyre.observability.dashboard.journal_follower import FollowedRun, watched
from gyre.observability.dashboard.tree_sizes import TreeSizes
from gyre.observability.report.figures_cells import FAULTS, IDLE, TIMELINE, USE
from gyre.observability.report.figures_executions import DURATIONS, GROUPS, STALENESS, TREES, WATER
from gyre.observability.report.figures_training import OBJECTIVE, PACE, REWARD, SAVED
from gyre.observability.report.html import page
from gyre.observability.report.model import ReportPart, ReportRun, beside_each_other, panels_of
from gyre.observability.report.plotting import png, settings, settled, svg
from gyre.observability.report.tables import as_json, plain, steps_csv
from gyre.observability.what_if import SimulatedPlacement, compared
from gyre.scheduler.replay import JOURNAL_EVENTS
from gyre.storage.files import replacing
from gyre.types.errors import ConfigError

PAGE, NUMBERS, STEPS = "index.html", "report.json", "steps.csv"
PARTS: tuple[ReportPart, ...] = (
    REWARD,
    TIMELINE,
    IDLE,
    USE,
    SAVED,
    WATER,
    GROUPS,
    STALENESS,
    DURATIONS,
    TREES,
    PACE,
    OBJECTIVE,
    FAULTS,
)
"""In the order of the page."""
PICTURES = frozenset(f"{part.name}.png" for part in PARTS)


def files(reports: Sequence[ReportRun], parts: Sequence[ReportPart] = PARTS) -> dict[str, bytes]:
    """Of one run or several; the same journals give the same bytes."""
    runs = beside_each_other(reports)
    found: dict[str, bytes] = {}
    drawn: dict[str, str] = {}
    for part in parts:
        having = [run for run in runs if part.needs(run)]
        if having:
            with settings():
                made = settled(part.draw(having))
                drawn[part.name] = svg(made, name=part.name)
                found[f"{part.name}.png"] = png(made)
    found[PAGE] = page(runs, drawn, parts).encode()
    found[NUMBERS] = as_json(plain(runs)).encode()
    found[STEPS] = steps_csv(runs).encode()
    return found


def reported(places: Sequence[Path], say: Callable[[str], None]) -> list[ReportRun]:
    """Every run up to the last fact of its journal; raises ConfigError where one has none."""
    runs = watched(list(places)).values()
    return [_report_of(run, say, num_runs=len(runs)) for run in runs]


def _report_of(run: FollowedRun, say: Callable[[str], None], *, num_runs: int) -> ReportRun:
    say(f"{run.place}: reading")
    trees = run_loop(_read(run))
    history = run.history
    if history is None or not history.is_started or history.now_s <= 0:
        why = "nothing is recorded yet" if run.problem is None else run.problem
        raise ConfigError(why if str(run.place) in why else f"{run.place}: {why}")
    say(f"{run.place}: simulating its work under each placement")
    return ReportRun(
        label=run.name,
        history=history,
        panels=panels_of(history, num_runs=num_runs),
        trees=trees,
        compared=_compared(run),
        state=run.state,
        ended=run.ended,
        problem=run.problem,
        seed=run.seed,
        started_at=None if run.is_simulated else run.started_at,
        is_simulated=run.is_simulated,
    )


async def _read(run: FollowedRun) -> dict[str, Any] | None:
    """Reads the whole journal; returns the sizes of its executions' trees."""
    await run.look()
    if run.history is None or run.folder is None:
        return None
    sizes = TreeSizes(run)
    sizes.panel()
    await sizes.wait_read()
    return sizes.panel()


def _compared(run: FollowedRun) -> tuple[SimulatedPlacement, ...]:
    """Of a journal that makes no run to its end, nothing can be simulated."""
    if run.problem is not None:
        return ()
    place = run.place
    return compared(read(path_of(place) if place.is_dir() else place, kinds=JOURNAL_EVENTS))


def refuse_other(folder: Path) -> None:
    """Raises ConfigError where something lies that is no report."""
    nearest = next(parent for parent in (folder, *folder.absolute().parents) if parent.exists())
    if not nearest.is_dir():
        raise ConfigError(f"{nearest}: expected a folder, found a file")
    if folder.is_dir() and any(folder.iterdir()) and not (folder / NUMBERS).is_file():
        raise ConfigError(f"{folder}: holds something else than a report; --out names another")


def placed(folder: Path, files: Mapping[str, bytes]) -> None:
    """The files are in the folder, and no picture of an older report."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{folder}: cannot be made: {error.strerror}") from error
    for name in PICTURES - set(files):
        (folder / name).unlink(missing_ok=True)
    for name, data in files.items():
        with replacing(folder / name) as part:
            part.write_bytes(data)
