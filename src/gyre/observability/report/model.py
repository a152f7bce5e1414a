"""Parts and data of a report."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from matplotlib.figure import Figure

from gyre.observability.dashboard.panels import PANELS, panels
from gyre.observability.dashboard.series import ViewWindow
from gyre.observability.history.run import RunHistory
from gyre.observability.terminal.colors import cut, safe
from gyre.observability.terminal.text import spoken
from gyre.observability.what_if import SimulatedPlacement

MOST_POINTS = 1200
"""Of a picture over time."""
WIDEST_LABEL = 40
"""Columns of what a run is called, which has a place in pictures too."""
ALL_POINTS = 2400
"""Of those of all runs, so that a page of many stays small."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportRun:
    """One run."""

    label: str
    """What it is called; no other run of its report is called so."""
    place: int | None = None
    """Among the runs of its report; None of one alone."""
    history: RunHistory = field(repr=False)
    panels: Mapping[str, Any] = field(repr=False)
    """As a page has them, at the last fact."""
    trees: Mapping[str, Any] | None = None
    """Sizes of trees; None where no call logs are kept."""
    compared: Sequence[SimulatedPlacement] = ()
    state: str = "ended"
    """ended, running, or silent where it has no controller."""
    ended: str | None = None
    """Why it is over."""
    problem: str | None = None
    """Why its journal was not read to the end."""
    seed: int | None = None
    started_at: float | None = None
    """Seconds of the calendar; None of a simulated run."""
    is_simulated: bool = False

    @property
    def end_s(self) -> float:
        return self.history.now_s


def panels_of(history: RunHistory, *, num_runs: int = 1) -> dict[str, Any]:
    """All of them, over the whole run, which is one of so many."""
    points = min(MOST_POINTS, ALL_POINTS // num_runs)
    view = ViewWindow(at_s=history.now_s, from_s=0.0, to_s=history.now_s, points=points)
    return panels(history, view, PANELS)


def beside_each_other(runs: Sequence[ReportRun]) -> list[ReportRun]:
    """The same runs in their places; those that share a name have a number behind it."""
    names = [cut(safe(run.label), WIDEST_LABEL) for run in runs]
    shared = {name for name, many in Counter(names).items() if many > 1}
    seen: Counter[str] = Counter()
    found = []
    for place, (name, one) in enumerate(zip(names, runs, strict=True)):
        seen[name] += 1
        label = f"{name} ({seen[name]})" if name in shared else name
        found.append(replace(one, label=label, place=place if len(runs) > 1 else None))
    return found


ABSENT = "–"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportTable:
    """Rows of text under a head; the first columns are words, the others numbers."""

    caption: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    num_words: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportPart:
    """One picture of one or several runs."""

    name: str
    """Of its file, and of its place in the page."""
    title: str
    how: str
    """How to read the picture."""
    needs: Callable[[ReportRun], bool]
    """Whether a run has any of it."""
    draw: Callable[[Sequence[ReportRun]], Figure]
    """Of runs that have some of it, one at least."""
    why_not: Callable[[ReportRun], str] = lambda _: "the journal says nothing of it"
    """Why a run has none of it."""
    says: Callable[[ReportRun], str]
    """What there is to see of one run, in words."""
    tables: Callable[[ReportRun], Sequence[ReportTable]] = lambda _: ()


def column(run: ReportRun, name: str) -> list[float]:
    """What steps have under a name, without those that have nothing."""
    return [value for value in run.panels["steps"][name] if value is not None]


def number(value: float | None, digits: int = 3) -> str:
    """With so many digits that say something."""
    if value is None:
        return ABSENT
    if value == 0 or 10**digits <= abs(value) < 1e15:
        return f"{value:,.0f}"
    return f"{value:.{digits}g}"


def count(value: float | None) -> str:
    return ABSENT if value is None else f"{value:,.0f}"


def took(seconds: float) -> str:
    """As people say it, and in milliseconds what is too short for that."""
    return f"{seconds * 1000:.0f} ms" if 0 < seconds < 0.1 else spoken(seconds)


def percentage(part: float | None) -> str:
    return ABSENT if part is None else f"{part:.1%}"
