"""A part of a report: a question, a picture, what the picture shows in words, and its numbers."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure

from gyre.observability.report.told import ReportRun
from gyre.observability.terminal.text import spoken

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
