"""What a live run came to, from its journal and its call logs."""

import re
from collections import Counter
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.live.compare import PHASES
from benchmarks.live.running import Ran

from gyre.controller.cells.transitions import COUNTED
from gyre.observability.dashboard.panels_cells import CAUSES, Account
from gyre.observability.history.run import RunHistory
from gyre.scheduler.messages import RunStarted, StepTaken
from gyre.scheduler.replay import shape_of
from gyre.storage import call_log
from gyre.types.call_records import CallClosed, CallFailed, LogOpened
from gyre.types.run_events import ClaimTrained, StepMade, TransitionTimed, WeightsPublished

ID_BYTES = 4
WARM = re.compile(r"^(engine|trainer): warm after ([0-9.]+) s$", re.MULTILINE)
"""What a cell's log says once its halves have computed."""


def sample(ran: Ran, folder: Path) -> dict[str, Any]:
    """Seconds to the last step, where the time of cells went, and what became of calls."""
    header = ran.reading.header
    assert header is not None
    history = RunHistory(shape_of(header.shape))
    history.record_all((one.now, one.event) for one in ran.reading.entries)
    ((began, _),) = ran.reading.facts((RunStarted,))
    last = max(now for now, _ in ran.reading.facts((StepTaken,)))
    return {
        "seconds": last - began,
        "wall_s": ran.wall_s,
        "start_s": ran.wall_s - ran.reading.entries[-1].now,
        **_shares(history, began, last),
        **_ages(history),
        **_calls(folder, last - began),
        **_training(ran),
        **_transitions(ran),
        "facts": len(ran.reading.entries),
        "controller_cpu_s": ran.used["controller"].cpu_s,
        **ran.around,
        **_warm(folder),
    }


def _shares(history: RunHistory, began: float, last: float) -> dict[str, float]:
    """Parts of the time of all cells until the last step, by what it went to."""
    spent = Account(history, (began, last)).total()
    return {
        f"share {cause.value}": one / sum(spent) for cause, one in zip(CAUSES, spent, strict=True)
    }


def _ages(history: RunHistory) -> dict[str, float]:
    ages = history.scheduler.staleness.histogram
    total = sum(ages.values())
    return {
        "staleness mean": sum(age * groups for age, groups in ages.items()) / total,
        "staleness max": max(ages),
    }


def _calls(folder: Path, seconds: float) -> dict[str, float]:
    """Until the last step: what is cut off by the end of the run is not counted."""
    records = [one for path in call_log.logs(folder) for one in call_log.read(path).records]
    # Call logs have the time of the calendar, and the first is opened as the run begins.
    until = min(one.at for one in records if isinstance(one, LogOpened)) + seconds
    closed = [one for one in records if isinstance(one, CallClosed) and one.closed_at <= until]
    return {
        "calls": len(closed),
        "calls_s": sum(one.closed_at - one.opened_at for one in closed),
        "sampled_tokens": sum(len(one.output) // ID_BYTES for one in closed),
        "failed_calls": sum(isinstance(one, CallFailed) and one.at <= until for one in records),
    }


def _training(ran: Ran) -> dict[str, float]:
    claims = [fact for _, fact in ran.reading.facts((ClaimTrained,))]
    made = [fact for _, fact in ran.reading.facts((StepMade,))]
    published = [fact for _, fact in ran.reading.facts((WeightsPublished,))]
    return {
        "claims": len(claims),
        "trained_tokens": sum(one.num_tokens for one in claims),
        "claims_s": sum(one.seconds for one in claims),
        "reduce_s": fmean(one.reduce_s for one in made),
        "step_s": fmean(one.step_s for one in made),
        "publication: save, s": fmean(one.save_s for one in published) if published else 0.0,
        "publication: load, s": fmean(one.load_s for one in published) if published else 0.0,
    }


def _warm(folder: Path) -> dict[str, float]:
    """Seconds of a start in which the slowest engine and the slowest trainer compute first."""
    found: dict[str, float] = {}
    for log in sorted((folder / "logs").glob("*.log")):
        for what, seconds in WARM.findall(log.read_text(errors="replace")):
            found[what] = max(found.get(what, 0.0), float(seconds))
    return {f"warm {what}_s": seconds for what, seconds in sorted(found.items())}


def _transitions(ran: Ran) -> dict[str, Any]:
    timed = [fact for _, fact in ran.reading.facts((TransitionTimed,))]
    phases: dict[str, list[float]] = {}
    moved: Counter[str] = Counter()
    for one in timed:
        way = "in" if one.into_training else "home"
        for phase, seconds in one.phases.items():
            phases.setdefault(f"{way}: {phase}", []).append(seconds)
        moved.update(one.moved)
    return {
        "transitions": len(timed),
        **{f"{name}, s": fmean(phases[name]) if name in phases else None for name in PHASES},
        **{f"moved {name}": moved[name] for name in COUNTED},
    }
