"""The dashboard's API: what the page asks for, as plain values."""

from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, TypeVar

from gyre.observability.dashboard.journal_follower import FollowedRun
from gyre.observability.dashboard.panels import PANELS, panels
from gyre.observability.dashboard.series import ViewWindow
from gyre.observability.dashboard.views import (
    MOST_ROWS,
    ORDERS,
    ListingQuery,
    NewsCursor,
    listed,
    moment,
    plain_shape,
)
from gyre.observability.history.run import RunHistory
from gyre.types.errors import NotFound, RequestError
from gyre.types.outcomes import Ending, Outcome

FORMAT = 1
"""Of all answers; grows when something in them means something else."""
MOST_POINTS = 20_000
OWN_PANELS = ("trees",)
"""Panels that are no part of a run."""
TRAINING, HELD_OUT = "training", "held-out"
"""Kinds of executions."""

Query = Mapping[str, str]
Chosen = TypeVar("Chosen", bound=Enum)


def runs(watched: Mapping[str, FollowedRun]) -> dict[str, Any]:
    """Which runs are watched."""
    return {
        "format": FORMAT,
        "runs": [
            {
                "key": run.key,
                "name": run.name,
                "place": str(run.place),
                "is_simulated": run.is_simulated,
            }
            for run in watched.values()
        ],
    }


def history(
    watched: Mapping[str, FollowedRun],
    query: Query,
    trees: Callable[[FollowedRun, ViewWindow], Any],
) -> Any:
    """A run at a moment, with the panels asked for."""
    known(query, "run", "at", "from", "to", "points", "panels")
    run = run_of(watched, query)
    names = _panels(query)
    if run.history is None:
        view = ViewWindow(at_s=0.0, from_s=0.0, to_s=0.0)
        nothing = dict.fromkeys(("shape", "moment", "panels"))
        return {"format": FORMAT, "run": _run(run, view)} | nothing
    view = _view(run.history, query)
    own = {name: trees(run, view) for name in names if name in OWN_PANELS}
    return {
        "format": FORMAT,
        "run": _run(run, view),
        "shape": plain_shape(run.history.shape),
        "moment": moment(run.history, view.at_s),
        "panels": panels(run.history, view, [name for name in names if name in PANELS]) | own,
    }


def executions(watched: Mapping[str, FollowedRun], query: Query) -> dict[str, Any]:
    """Executions of a run at a moment, a page of them."""
    known(query, "run", "at", "offset", "limit", "order", "kind", "group", "ending", "outcome")
    run = run_of(watched, query)
    if run.history is None:
        return {"total": 0, "rows": []}
    order = query.get("order", "group")
    if order not in ORDERS:
        raise RequestError(f"order: expected one of {', '.join(ORDERS)}")
    group = None
    if "group" in query:
        group = whole(query, "group", 0, most=max(0, len(run.history.work.queries) - 1))
    asked = ListingQuery(
        at_s=number(query, "at", run.history.now_s, most=run.history.now_s),
        held_out=_kind(query) == HELD_OUT,
        order=order,
        group=group,
        ending=_choice(query, "ending", Ending),
        outcome=_choice(query, "outcome", Outcome),
        offset=whole(query, "offset", 0, most=2**31),
        limit=whole(query, "limit", 100, most=MOST_ROWS),
    )
    found = listed(run.history, asked)
    for row in found["rows"]:
        row["has_tree"] = run.has_tree(row["execution"])
    return found


def news(run: FollowedRun, newest: NewsCursor) -> dict[str, Any]:
    """A run as it is now, and what is new of it since the cursor."""
    found = run.history
    return {
        "run": run.key,
        "state": run.state,
        "ended": run.ended,
        "problem": run.problem,
        "sequence": run.sequence,
        "now_s": 0.0 if found is None else found.now_s,
        "moment": None if found is None else moment(found, found.now_s),
        "lines": [] if found is None else newest.lines(found),
    }


def plain(run: FollowedRun) -> dict[str, Any]:
    """A run as it is now, for programs."""
    at_s = 0.0 if run.history is None else run.history.now_s
    return {
        "format": FORMAT,
        "run": _run(run, ViewWindow(at_s=at_s, from_s=0.0, to_s=at_s)),
        "shape": None if run.history is None else plain_shape(run.history.shape),
        "moment": None if run.history is None else moment(run.history, at_s),
    }


# Of a query


def known(query: Query, *names: str) -> None:
    """Nothing else is asked."""
    if unknown := sorted(set(query) - set(names)):
        raise RequestError(f"{unknown[0]}: unknown; known here: {', '.join(names)}")


def run_of(watched: Mapping[str, FollowedRun], query: Query) -> FollowedRun:
    """The run that is named; one alone need not be."""
    key = query.get("run", next(iter(watched)))
    if key not in watched:
        raise NotFound(f"run {key}: expected one of {', '.join(watched)}")
    return watched[key]


def number(query: Query, name: str, absent: float, *, most: float) -> float:
    """A time; one that has not come yet is the last there is."""
    if name not in query:
        return absent
    try:
        found = float(query[name])
    except ValueError:
        found = float("nan")
    if not found >= 0:
        raise RequestError(f"{name}: {query[name]!r} is no number from 0")
    return min(found, most)


def whole(query: Query, name: str, absent: int, *, most: int, least: int = 0) -> int:
    text = query.get(name, str(absent))
    if not (text.isascii() and text.isdecimal() and len(text) < 12):
        raise RequestError(f"{name}: {text!r} is no whole number from {least} to {most}")
    found = int(text)
    if not least <= found <= most:
        raise RequestError(f"{name}: {found} is not between {least} and {most}")
    return found


def _choice(query: Query, name: str, kind: type[Chosen]) -> Chosen | None:
    if name not in query:
        return None
    try:
        return kind(query[name])
    except ValueError as error:
        values = ", ".join(member.value for member in kind)
        raise RequestError(f"{name}: expected one of {values}") from error


def _kind(query: Query) -> str:
    found = query.get("kind", TRAINING)
    if found not in (TRAINING, HELD_OUT):
        raise RequestError(f"kind: expected {TRAINING} or {HELD_OUT}")
    return found


def _panels(query: Query) -> list[str]:
    names = [*PANELS, *OWN_PANELS]
    if "panels" not in query:
        return names
    asked = [panel for panel in query["panels"].split(",") if panel]
    if unknown := [name for name in asked if name not in names]:
        raise RequestError(f"panels: no {unknown[0]}; there are {', '.join(names)}")
    return list(dict.fromkeys(asked))


def _view(found: RunHistory, query: Query) -> ViewWindow:
    at_s = number(query, "at", found.now_s, most=found.now_s)
    to_s = number(query, "to", at_s, most=at_s)
    from_s = number(query, "from", 0.0, most=to_s)
    points = whole(query, "points", 600, most=MOST_POINTS, least=10)
    return ViewWindow(at_s=at_s, from_s=from_s, to_s=to_s, points=points)


def _run(run: FollowedRun, view: ViewWindow) -> dict[str, Any]:
    return {
        "key": run.key,
        "name": run.name,
        "place": str(run.place),
        "seed": run.seed,
        "started_at": run.started_at,
        "is_simulated": run.is_simulated,
        "state": run.state,
        "ended": run.ended,
        "problem": run.problem,
        "sequence": run.sequence,
        "now_s": 0.0 if run.history is None else run.history.now_s,
        "at_s": view.at_s,
        "from_s": view.from_s,
        "to_s": view.to_s,
    }
