"""A moment, the news, the table of executions."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, TypeAlias, TypeVar

from gyre.observability.dashboard.panels import latest
from gyre.observability.history.executions import EvaluationRecord, ExecutionRecord
from gyre.observability.history.run import RunCounts, RunHistory, supply
from gyre.observability.history.steps import StepRecord
from gyre.observability.terminal.text import sized, spoken
from gyre.scheduler import policies
from gyre.scheduler.cells import CellState
from gyre.scheduler.config import SchedulerConfig
from gyre.scheduler.groups import MemberStage, Phase
from gyre.scheduler.policies import Boundary, Elastic
from gyre.simulator.timeline import placement_name
from gyre.types.ids import CORE
from gyre.types.outcomes import Ending, Outcome
from gyre.types.run_events import CheckpointMade, EvaluationRound, WeightsPublished

MOST_ROWS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class ListingQuery:
    """Which executions, and in which order."""

    at_s: float
    held_out: bool = False
    """Those of held-out evaluation in place of those that are trained on."""
    order: str = "group"
    """One of ORDERS."""
    group: int | None = None
    ending: Ending | None = None
    outcome: Outcome | None = None
    offset: int = 0
    limit: int = 100


One: TypeAlias = ExecutionRecord | EvaluationRecord

ORDERS: dict[str, Callable[[One, float], tuple[Any, ...]]] = {
    "group": lambda one, at_s: (),
    "name": lambda one, at_s: (one.name is None, one.name or ""),
    "ended": lambda one, at_s: (-(_by(one.ended_s, at_s) or 0.0),),
    "ran": lambda one, at_s: (-_ran_s(one, at_s),),
    "score": lambda one, at_s: (_score(one, at_s),),
}
"""Newest, longest and lowest first; those that have no such value come last."""


def listed(history: RunHistory, asked: ListingQuery) -> dict[str, Any]:
    """How many there are of them, and the rows of one page."""
    at_s = asked.at_s
    found = [
        attempt
        for attempt in _among(history, asked)
        if (asked.ending is None or _ending(attempt, at_s) is asked.ending)
        and (asked.outcome is None or _outcome(attempt, at_s) is asked.outcome)
    ]
    if asked.order != "group":
        order = ORDERS[asked.order]
        found.sort(key=lambda one: order(one, at_s))
    page = found[asked.offset : asked.offset + min(asked.limit, MOST_ROWS)]
    return {"total": len(found), "rows": [_row(history, attempt, at_s) for attempt in page]}


def _among(history: RunHistory, asked: ListingQuery) -> Iterator[One]:
    """Those that were there at the moment."""
    if asked.held_out:
        yield from (row for row in history.held_out.rows.values() if row.asked_s <= asked.at_s)
        return
    work = history.work
    among = work.attempts if asked.group is None else work.members(asked.group)
    yield from (
        attempt for attempt in among if work.queries[attempt.group].admitted_s <= asked.at_s
    )


def _row(history: RunHistory, one: One, at_s: float) -> dict[str, Any]:
    own = _held_out(one) if isinstance(one, EvaluationRecord) else _trained(history, one, at_s)
    ending, outcome = _ending(one, at_s), _outcome(one, at_s)
    return own | {
        "execution": one.name,
        "stage": _stage(one, at_s).value,
        # Where it was before it was moved is not kept.
        "engine": one.engine if at_s >= history.now_s else None,
        "launched_s": _by(one.launched_s, at_s),
        "ended_s": _by(one.ended_s, at_s),
        "ran_s": one.ran_s if _by(one.ended_s, at_s) is not None else None,
        "ending": None if ending is None else ending.value,
        "outcome": None if outcome is None else outcome.value,
        "score": one.score if outcome is not None else None,
    }


def _trained(history: RunHistory, one: ExecutionRecord, at_s: float) -> dict[str, Any]:
    query = history.work.queries[one.group]
    is_pulled = _by(query.assigned_s, at_s) is not None
    return {
        "group": one.group,
        "member": one.member,
        "evaluation": None,
        "task": query.task,
        "version": query.version,
        # From 1, as steps are counted for people.
        "step": query.step + 1 if is_pulled and query.step is not None else None,
    }


def _held_out(one: EvaluationRecord) -> dict[str, Any]:
    return {
        "group": None,
        "member": None,
        "evaluation": one.number,
        "task": one.task,
        "version": one.version,
        "step": None,
    }


def _by(time_s: float | None, at_s: float) -> float | None:
    return time_s if time_s is not None and time_s <= at_s else None


def _stage(one: One, at_s: float) -> MemberStage:
    if _by(one.closed_s, at_s) is not None:
        return MemberStage.CLOSED
    if _by(one.ended_s, at_s) is not None:
        return MemberStage.TERMINATED
    return MemberStage.QUEUED if _by(one.launched_s, at_s) is None else MemberStage.RUNNING


def _ending(one: One, at_s: float) -> Ending | None:
    return one.ending if _by(one.ended_s, at_s) is not None else None


def _outcome(one: One, at_s: float) -> Outcome | None:
    return one.outcome if _by(one.closed_s, at_s) is not None else None


def _ran_s(one: One, at_s: float) -> float:
    """So far, of one that runs."""
    if _by(one.launched_s, at_s) is None or one.launched_s is None:
        return 0.0
    return (_by(one.ended_s, at_s) or at_s) - one.launched_s


def _score(one: One, at_s: float) -> float:
    has_one = one.score is not None and _outcome(one, at_s) is not None
    return one.score if has_one and one.score is not None else float("inf")


_JOINED = (CellState.ENTERING, CellState.TRAINING)


def plain_shape(shape: SchedulerConfig) -> dict[str, Any]:
    """What a page needs to know of a run before anything happens, by the paper's symbols."""
    dispatch, placement = shape.dispatch, shape.placement
    is_boundary = isinstance(dispatch, Boundary)
    serving = shape.num_cells if placement.cells_serve else 0
    return {
        "B": shape.groups_per_batch,
        "N": shape.executions_per_group,
        "group_size": shape.group_size,
        "K": shape.num_cells,
        "C_e": shape.cell_capacity,
        "C_s": shape.standalone_capacity,
        "standalone": list(shape.standalone_capacities),
        "mu": shape.steps_per_burst,
        "phi": dispatch.extra_dispatch if isinstance(dispatch, Boundary) else None,
        "depth": None if isinstance(dispatch, Boundary) else dispatch.depth,
        "dispatch": "boundary" if is_boundary else "continuous",
        "steps": shape.steps,
        "placement": placement_name(placement),
        "is_streaming": placement.streaming,
        "cells_serve": placement.cells_serve,
        "supply_groups": shape.supply_groups,
        "supply_dwell_s": shape.supply_dwell_s,
        "rescue_s": shape.rescue_s,
        "full_capacity": shape.standalone_capacity + serving * shape.cell_capacity,
    }


def moment(history: RunHistory, at_s: float) -> dict[str, Any]:
    """The run as it was then."""
    shape, level = history.shape, history.level_at(at_s)
    states = [history.fleet.change_at(cell, at_s).state for cell in range(shape.num_cells)]
    is_over = history.is_over and at_s >= history.now_s
    why = "over" if is_over else hindrance(shape, level, states, at_s)
    outcomes = history.work.outcomes_at(at_s)
    return {
        "at_s": at_s,
        "version": level.version,
        "published": level.published,
        "phase": level.phase.value,
        "is_batch_open": level.is_batch_open,
        "assigned": level.assigned,
        "needed": shape.groups_per_batch - level.assigned,
        "ready": level.ready,
        "waterlevel": level.waterlevel,
        "running": level.running,
        "queued": level.queued,
        "evaluations": level.evaluations,
        "capacity": level.capacity,
        "line": level.capacity - shape.cell_capacity,
        "supply": supply(level, shape),
        "supply_since_s": level.supply_since_s,
        "entering": {"may": why is None, "why": why},
        "left_s": 0.0 if is_over else history.steps.left_s(at_s),
        "cells": [_engine(history, cell, at_s) for cell in range(shape.num_cells)],
        "engines": [
            _engine(history, engine, at_s)
            for engine in range(shape.num_cells, len(history.fleet.capacities))
        ],
        "groups": {
            "queued": level.queued_groups,
            "running": level.running_groups,
            "assessing": level.assessing_groups,
            "ready": level.ready,
            "assigned": level.assigned,
            "trained": level.trained,
            "void": level.void,
        },
        "executions": {
            "dispatched": level.dispatched,
            "launched": level.launched,
            "terminated": level.terminated,
            "closed": sum(outcomes.values()),
        },
        "outcomes": outcomes,
        "endings": history.work.endings_at(at_s),
        "use": latest(history, at_s),
    }


def _engine(history: RunHistory, engine: int, at_s: float) -> dict[str, Any]:
    change = history.fleet.change_at(engine, at_s)
    is_cell = engine < history.shape.num_cells
    named: dict[str, Any] = {"engine": engine}
    if is_cell:
        named = {"cell": engine, "kind": "core" if engine == CORE else "satellite"}
    return named | {
        "state": change.state.value,
        "since_s": change.at_s,
        "load": history.load.load_at(engine, at_s),
        "capacity": history.fleet.capacities[engine],
    }


def hindrance(
    shape: SchedulerConfig, level: RunCounts, states: Sequence[CellState], at_s: float
) -> str | None:
    """What keeps the next cell from entering training, the first in the order of the rules (SPEC
    2.1); None where nothing does, and it is sent with the next event."""
    if not shape.placement.cells_serve:
        return "fixed split"
    if level.phase is not Phase.TRAINING:
        return "burst end"
    if level.switching:
        return "switching"
    num_next = _num_next(shape, states)
    if not num_next:
        return "nobody home"
    if (missing := _unsupplied(shape, level, states[CORE], at_s)) is not None:
        return missing
    may_enter = shape.placement.pauses or policies.may_enter_training(
        waterlevel=level.waterlevel,
        capacity=level.capacity,
        leaving=num_next * shape.cell_capacity,
    )
    return None if may_enter else "waterlevel"


def _num_next(shape: SchedulerConfig, states: Sequence[CellState]) -> int:
    """Cells that would enter together."""
    home = [cell for cell, state in enumerate(states) if state is CellState.SERVING]
    if not isinstance(shape.placement, Elastic):
        return len(home)
    if states[CORE] is not CellState.TRAINING:
        return int(states[CORE] is CellState.SERVING)
    last = max(cell for cell, state in enumerate(states) if state in _JOINED)
    return int(any(cell > last for cell in home))


def _unsupplied(
    shape: SchedulerConfig, level: RunCounts, core: CellState, at_s: float
) -> str | None:
    if core is not CellState.TRAINING:
        if level.is_batch_open:
            return None
        if not shape.placement.streaming:
            done = level.version % shape.steps_per_burst * shape.groups_per_batch + level.assigned
            return None if level.ready >= shape.burst_groups - done else "supply"
    if supply(level, shape) < shape.supply_groups:
        return "supply"
    since_s, dwell_s = level.supply_since_s, shape.supply_dwell_s
    return None if policies.has_dwelt(since=since_s, dwell_s=dwell_s, now=at_s) else "dwell"


MOST_LINES = 50
New = TypeVar("New")


class NewsCursor:
    """How much of a run one page has been sent."""

    def __init__(self) -> None:
        self._sent: Counter[str] = Counter()

    def lines(self, history: RunHistory) -> list[dict[str, Any]]:
        """In order of time, the last of them where there are many."""
        steps = history.steps
        found = [
            *((row.at_s, _step(row)) for row in self._new("steps", steps.rows)),
            *((row.at_s, _published(row.fact)) for row in self._new("weights", steps.publications)),
            *((row.at_s, _kept(row.fact)) for row in self._new("checkpoints", steps.checkpoints)),
            *((row.at_s, _scored(row.fact)) for row in self._new("rounds", steps.rounds)),
            *((row.at_s, row.text) for row in self._new("faults", history.faults.rows)),
        ]
        found.sort(key=itemgetter(0))
        return [{"at_s": at_s, "text": text} for at_s, text in found[-MOST_LINES:]]

    def _new(self, kind: str, rows: Sequence[New]) -> Sequence[New]:
        """Those that were not sent; they count as sent from now on."""
        new = rows[self._sent[kind] :]
        self._sent[kind] = len(rows)
        return new


def _step(step: StepRecord) -> str:
    said = [f"step {step.number} taken after {spoken(step.took_s)}"]
    if step.reward is not None:
        said.append(f"reward {step.reward:.3f}")
    if step.staleness is not None:
        said.append(f"staleness {step.staleness:.2f}")
    return ", ".join(said)


def _published(fact: WeightsPublished) -> str:
    took = spoken(fact.save_s + fact.load_s)
    return f"version {fact.version} published, {sized(fact.num_bytes)} in {took}"


def _kept(fact: CheckpointMade) -> str:
    took = f"{sized(fact.num_bytes)} in {spoken(fact.seconds)}"
    return f"checkpoint of version {fact.version} is durable, {took}"


def _scored(fact: EvaluationRound) -> str:
    score = "no valid score" if fact.mean is None else f"{fact.mean:.3f}"
    return f"held-out evaluation of version {fact.version}: {score}"
