"""Panels on cells and engines: who did what when, where their time went, what switching took."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from statistics import fmean
from typing import Any

from gyre.observability.dashboard.account import CAUSES, Account
from gyre.observability.dashboard.view import ViewWindow, columns
from gyre.observability.history.run import RunHistory
from gyre.observability.history.seen import CellSpan
from gyre.observability.history.story_cells import TimedTransition
from gyre.scheduler.cells import CellState
from gyre.types.ids import CORE

SLICES = 120
"""Of the account of time."""


def roles(story: RunHistory, view: ViewWindow) -> dict[str, Any]:
    """Who did what when; of stretches too short to be seen, what there is most of is shown."""
    num_cells = story.shape.num_cells
    least_s = (view.to_s - view.from_s) / max(1, view.points)
    drawn = [
        _joined(list(story.fleet.spans(one, view.from_s, view.to_s)), least_s, view.points)
        for one in range(len(story.fleet.capacities))
    ]
    return {
        "states": [one.value for one in CellState],
        "cells": [
            {
                "cell": cell,
                "kind": "core" if cell == CORE else "satellite",
                "spans": drawn[cell],
                "training_share": _training_share(story, cell, view),
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
        return [[one.start_s, one.end_s, one.state.value] for one in spans]
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
    for one in spans:
        if one.end_s - one.start_s >= least_s:
            if short:
                yield short
            yield [one]
            short = []
            continue
        short.append(one)
        if one.end_s - short[0].start_s >= least_s:
            yield short
            short = []
    if short:
        yield short


def _mostly(spans: Sequence[CellSpan]) -> CellState:
    spent: defaultdict[CellState, float] = defaultdict(float)
    for one in spans:
        spent[one.state] += one.end_s - one.start_s
    return max(spent, key=spent.__getitem__)


def _training_share(story: RunHistory, cell: int, view: ViewWindow) -> float | None:
    spans = story.fleet.spans(cell, view.from_s, view.to_s)
    spent = sum(one.end_s - one.start_s for one in spans if one.state is CellState.TRAINING)
    whole = view.to_s - view.from_s
    return spent / whole if whole > 0 else None


def idle(story: RunHistory, view: ViewWindow) -> dict[str, Any]:
    """Where the time of all cells and engines went."""
    whole = view.to_s - view.from_s
    slices = min(SLICES, view.points) if whole > 0 else 1
    edges = [view.from_s + whole * one / slices for one in range(slices + 1)]
    account = Account(story, edges)
    num_cells = story.shape.num_cells
    return {
        "causes": [one.value for one in CAUSES],
        "cells": [{"cell": cell, "seconds": account.of(cell)} for cell in range(num_cells)],
        "engines": [
            {"engine": engine, "seconds": account.of(engine)}
            for engine in range(num_cells, len(story.fleet.capacities))
        ],
        "total": account.total(),
        "over_time": {
            "at_s": edges[:-1],
            "until_s": edges[-1],
            "seconds": {one.value: account.by_slice(one) for one in CAUSES},
        },
    }


def transitions(story: RunHistory, view: ViewWindow) -> dict[str, Any]:
    """Changes of role, and what each phase of them took on average."""
    rows = [one for one in story.fleet.transitions if view.from_s <= one.at_s <= view.to_s]
    values: dict[str, Callable[[TimedTransition], Any]] = {
        "at_s": lambda one: one.at_s,
        "cell": lambda one: one.fact.cell,
        "into_training": lambda one: one.fact.into_training,
        "seconds": lambda one: sum(one.fact.phases.values()),
    }
    return {
        "rows": columns(rows[-view.points :], values),
        "phases": {
            "into": _phases(one for one in rows if one.fact.into_training),
            "home": _phases(one for one in rows if not one.fact.into_training),
        },
    }


def _phases(rows: Iterable[TimedTransition]) -> dict[str, float]:
    found: dict[str, list[float]] = {}
    for one in rows:
        for phase, seconds in one.fact.phases.items():
            found.setdefault(phase, []).append(seconds)
    return {phase: fmean(seconds) for phase, seconds in found.items()}
