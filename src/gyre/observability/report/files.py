"""A report as files by name: the page, its pictures, and the numbers that they were drawn from."""

from collections.abc import Sequence

from gyre.observability.report.cells import FAULTS, IDLE, TIMELINE
from gyre.observability.report.counts import DURATIONS, STALENESS, TREES
from gyre.observability.report.demand import GROUPS, WATER
from gyre.observability.report.html import page
from gyre.observability.report.learning import OBJECTIVE, PACE, REWARD
from gyre.observability.report.part import ReportPart
from gyre.observability.report.plotting import png, settings, settled, svg
from gyre.observability.report.saved import SAVED
from gyre.observability.report.tables import as_json, plain, steps_csv
from gyre.observability.report.told import ReportRun, beside_each_other
from gyre.observability.report.use import USE

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
PICTURES = frozenset(f"{one.name}.png" for one in PARTS)


def files(told: Sequence[ReportRun], parts: Sequence[ReportPart] = PARTS) -> dict[str, bytes]:
    """Of one run or several; the same journals give the same bytes."""
    runs = beside_each_other(told)
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
