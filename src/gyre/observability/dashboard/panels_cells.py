"""Cell panels, and where time went: serving, training, and what cells and engines waited for.

Rule 1: the causes of a cell sum to all of its time, in every slice of it.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from itertools import pairwise
from typing import Any

from gyre.observability.dashboard.series import ViewWindow, columns
from gyre.observability.history.cells import CellSpan, TimedTransition, mean_phases
from gyre.observability.history.run import RunHistory
from gyre.scheduler.cells import CellState
from gyre.types.ids import CORE


class Cause(Enum):
    """What an engine's time was spent on."""

    SERVING = "serving"
    """Engines at home, by the part of their capacity that was taken."""
    EMPTY = "empty seats"
    TRAINING = "training"
    """Claims and updates."""
    ROLLOUTS = "waiting for rollouts"
    """In training, with nothing to claim."""
    WEIGHTS = "waiting for weights"
    """Pulling or loading them between roles."""
    PUBLICATION = "waiting for publication"
    SWITCHING = "switching"
    FENCED = "fenced"
    DEAD = "dead"


CAUSES = tuple(Cause)
_PLACE = {cause: place for place, cause in enumerate(CAUSES)}
_SIMPLE = {
    CellState.WAITING: Cause.PUBLICATION,
    CellState.FENCED: Cause.FENCED,
    CellState.DEAD: Cause.DEAD,
}


class Account:
    """Seconds by cause for every engine in each slice of a window."""

    def __init__(self, history: RunHistory, edges: Sequence[float]) -> None:
        self._history = history
        self.edges = edges
        self._knows_claims = any(history.load.busy)
        self.seconds: list[list[list[float]]] = [
            [self._slice(engine, since, until) for since, until in pairwise(edges)]
            for engine in range(len(history.fleet.capacities))
        ]
        """By engine, slice and cause."""

    def of(self, engine: int) -> list[float]:
        """By cause, over the whole window."""
        return [sum(column) for column in zip(*self.seconds[engine], strict=True)]

    def total(self) -> list[float]:
        return [sum(column) for column in zip(*map(self.of, range(len(self.seconds))), strict=True)]

    def by_slice(self, cause: Cause) -> list[float]:
        """Over all engines, slice by slice."""
        place = _PLACE[cause]
        return [
            sum(engine[at][place] for engine in self.seconds) for at in range(len(self.edges) - 1)
        ]

    def _slice(self, engine: int, since_s: float, until_s: float) -> list[float]:
        seconds = [0.0] * len(CAUSES)
        for span in self._history.fleet.spans(engine, since_s, until_s):
            for cause, spent in self._causes(engine, span):
                seconds[_PLACE[cause]] += spent
        return seconds

    def _causes(self, engine: int, span: CellSpan) -> Iterator[tuple[Cause, float]]:
        whole = span.end_s - span.start_s
        match span.state:
            case CellState.SERVING:
                taken = self._taken(engine, span)
                yield Cause.SERVING, taken
                yield Cause.EMPTY, whole - taken
            case CellState.TRAINING:
                yield from self._training(engine, span, whole)
            case CellState.ENTERING | CellState.LEAVING:
                weights = self._history.load.weights[engine]
                pulled = min(whole, weights.inside(span.start_s, span.end_s))
                yield Cause.WEIGHTS, pulled
                yield Cause.SWITCHING, whole - pulled
            case state:
                yield _SIMPLE[state], whole

    def _taken(self, engine: int, span: CellSpan) -> float:
        load = self._history.load
        seat_s = load.seat_s(engine, span.end_s) - load.seat_s(engine, span.start_s)
        return seat_s / self._history.fleet.capacities[engine]

    def _training(self, cell: int, span: CellSpan, whole: float) -> Iterator[tuple[Cause, float]]:
        """Without facts on claims, all time in training counts as work."""
        between = self._between_bursts(span)
        if not self._knows_claims:
            yield Cause.PUBLICATION, between
            yield Cause.TRAINING, whole - between
            return
        busy = min(whole, self._history.load.busy[cell].inside(span.start_s, span.end_s))
        between = min(between, whole - busy)
        yield Cause.TRAINING, busy
        yield Cause.PUBLICATION, between
        yield Cause.ROLLOUTS, whole - busy - between

    def _between_bursts(self, span: CellSpan) -> float:
        found = self._history.publishing.inside(span.start_s, span.end_s)
        since_s = self._history.publishing_since_s
        if since_s is not None:
            found += max(0.0, span.end_s - max(span.start_s, since_s))
        return found


SLICES = 120
"""Of the account of time."""


def roles(history: RunHistory, view: ViewWindow) -> dict[str, Any]:
    """Who did what when; of stretches too short to be seen, what there is most of is shown."""
    num_cells = history.shape.num_cells
    least_s = (view.to_s - view.from_s) / max(1, view.points)
    drawn = [
        _joined(list(history.fleet.spans(engine, view.from_s, view.to_s)), least_s, view.points)
        for engine in range(len(history.fleet.capacities))
    ]
    return {
        "states": [state.value for state in CellState],
        "cells": [
            {
                "cell": cell,
                "kind": "core" if cell == CORE else "satellite",
                "spans": drawn[cell],
                "training_share": _training_share(history, cell, view),
            }
            for cell in range(num_cells)
        ],
        "engines": [
            {"engine": engine, "spans": spans}
            for engine, spans in enumerate(drawn[num_cells:], start=num_cells)
        ],
    }


def _joined(spans: Sequence[CellSpan], least_s: float, most: int) -> list[list[Any]]:
    if len(spans) <= most:
        return [[span.start_s, span.end_s, span.state.value] for span in spans]
    found: list[list[Any]] = []
    for those in _seen(spans, least_s):
        state = _mostly(those).value
        if found and found[-1][2] == state:
            found[-1][1] = those[-1].end_s
        else:
            found.append([those[0].start_s, those[-1].end_s, state])
    return found


def _seen(spans: Sequence[CellSpan], least_s: float) -> Iterator[list[CellSpan]]:
    """Those that can be seen alone, and short ones together as soon as they can."""
    short: list[CellSpan] = []
    for span in spans:
        if span.end_s - span.start_s >= least_s:
            if short:
                yield short
            yield [span]
            short = []
            continue
        short.append(span)
        if span.end_s - short[0].start_s >= least_s:
            yield short
            short = []
    if short:
        yield short


def _mostly(spans: Sequence[CellSpan]) -> CellState:
    spent: defaultdict[CellState, float] = defaultdict(float)
    for span in spans:
        spent[span.state] += span.end_s - span.start_s
    return max(spent, key=spent.__getitem__)


def _training_share(history: RunHistory, cell: int, view: ViewWindow) -> float | None:
    spans = history.fleet.spans(cell, view.from_s, view.to_s)
    spent = sum(span.end_s - span.start_s for span in spans if span.state is CellState.TRAINING)
    whole = view.to_s - view.from_s
    return spent / whole if whole > 0 else None


def idle(history: RunHistory, view: ViewWindow) -> dict[str, Any]:
    """Where the time of all cells and engines went."""
    whole = view.to_s - view.from_s
    slices = min(SLICES, view.points) if whole > 0 else 1
    edges = [view.from_s + whole * index / slices for index in range(slices + 1)]
    account = Account(history, edges)
    num_cells = history.shape.num_cells
    return {
        "causes": [cause.value for cause in CAUSES],
        "cells": [{"cell": cell, "seconds": account.of(cell)} for cell in range(num_cells)],
        "engines": [
            {"engine": engine, "seconds": account.of(engine)}
            for engine in range(num_cells, len(history.fleet.capacities))
        ],
        "total": account.total(),
        "over_time": {
            "at_s": edges[:-1],
            "until_s": edges[-1],
            "seconds": {cause.value: account.by_slice(cause) for cause in CAUSES},
        },
    }


def transitions(history: RunHistory, view: ViewWindow) -> dict[str, Any]:
    """Changes of role, and what each phase of them took on average."""
    rows = [
        transition
        for transition in history.fleet.transitions
        if view.from_s <= transition.at_s <= view.to_s
    ]
    values: dict[str, Callable[[TimedTransition], Any]] = {
        "at_s": lambda one: one.at_s,
        "cell": lambda one: one.fact.cell,
        "into_training": lambda one: one.fact.into_training,
        "seconds": lambda one: sum(one.fact.phases.values()),
    }
    return {
        "rows": columns(rows[-view.points :], values),
        "phases": {
            "into": mean_phases(row for row in rows if row.fact.into_training),
            "home": mean_phases(row for row in rows if not row.fact.into_training),
        },
    }
