"""Executions of a story as rows for people: those of a moment, chosen, ordered, page by page."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

from gyre.observability.history.run import RunHistory
from gyre.observability.history.story_held_out import EvaluationRecord
from gyre.observability.history.story_work import ExecutionRecord
from gyre.scheduler.groups import MemberStage
from gyre.types.outcomes import Ending, Outcome

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
_LAST = float("inf")

ORDERS: dict[str, Callable[[One, float], tuple[Any, ...]]] = {
    "group": lambda one, at_s: (),
    "name": lambda one, at_s: (one.name is None, one.name or ""),
    "ended": lambda one, at_s: (-(_by(one.ended_s, at_s) or 0.0),),
    "ran": lambda one, at_s: (-_ran_s(one, at_s),),
    "score": lambda one, at_s: (_score(one, at_s),),
}
"""Newest, longest and lowest first; those that have no such value come last."""


def listed(story: RunHistory, asked: ListingQuery) -> dict[str, Any]:
    """How many there are of them, and the rows of one page."""
    at_s = asked.at_s
    found = [
        one
        for one in _among(story, asked)
        if (asked.ending is None or _ending(one, at_s) is asked.ending)
        and (asked.outcome is None or _outcome(one, at_s) is asked.outcome)
    ]
    if asked.order != "group":
        order = ORDERS[asked.order]
        found.sort(key=lambda one: order(one, at_s))
    page = found[asked.offset : asked.offset + min(asked.limit, MOST_ROWS)]
    return {"total": len(found), "rows": [_row(story, one, at_s) for one in page]}


def _among(story: RunHistory, asked: ListingQuery) -> Iterator[One]:
    """Those that were there at the moment."""
    if asked.held_out:
        yield from (one for one in story.held_out.rows.values() if one.asked_s <= asked.at_s)
        return
    work = story.work
    among = work.attempts if asked.group is None else work.members(asked.group)
    yield from (one for one in among if work.queries[one.group].admitted_s <= asked.at_s)


def _row(story: RunHistory, one: One, at_s: float) -> dict[str, Any]:
    own = _held_out(one) if isinstance(one, EvaluationRecord) else _trained(story, one, at_s)
    ending, outcome = _ending(one, at_s), _outcome(one, at_s)
    return own | {
        "execution": one.name,
        "stage": _stage(one, at_s).value,
        # Where it was before it was moved is not kept.
        "engine": one.engine if at_s >= story.now_s else None,
        "launched_s": _by(one.launched_s, at_s),
        "ended_s": _by(one.ended_s, at_s),
        "ran_s": one.ran_s if _by(one.ended_s, at_s) is not None else None,
        "ending": None if ending is None else ending.value,
        "outcome": None if outcome is None else outcome.value,
        "score": one.score if outcome is not None else None,
    }


def _trained(story: RunHistory, one: ExecutionRecord, at_s: float) -> dict[str, Any]:
    query = story.work.queries[one.group]
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
    return one.score if has_one and one.score is not None else _LAST
