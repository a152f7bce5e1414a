"""Executions of a story as rows for people: those of a moment, chosen, ordered, page by page."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gyre.plan.groups import Stage
from gyre.watch.story import Story
from gyre.watch.story_work import Attempt
from gyre.words.outcomes import Ending, Outcome

MOST_ROWS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Which executions, and in which order."""

    at_s: float
    order: str = "group"
    """One of ORDERS."""
    group: int | None = None
    ending: Ending | None = None
    outcome: Outcome | None = None
    offset: int = 0
    limit: int = 100


_LAST = float("inf")

ORDERS: dict[str, Callable[[Attempt, float], tuple[Any, ...]]] = {
    "group": lambda one, at_s: (),
    "name": lambda one, at_s: (one.name is None, one.name or ""),
    "ended": lambda one, at_s: (-(_by(one.ended_s, at_s) or 0.0),),
    "ran": lambda one, at_s: (-_ran_s(one, at_s),),
    "score": lambda one, at_s: (_score(one, at_s),),
}
"""Newest, longest and lowest first; those that have no such value come last."""


def listed(story: Story, asked: Asked) -> dict[str, Any]:
    """How many there are of them, and the rows of one page."""
    work, at_s = story.work, asked.at_s
    among = work.attempts if asked.group is None else work.members(asked.group)
    found = [
        one
        for one in among
        if work.queries[one.group].admitted_s <= at_s
        and (asked.ending is None or _ending(one, at_s) is asked.ending)
        and (asked.outcome is None or _outcome(one, at_s) is asked.outcome)
    ]
    if asked.order != "group":
        order = ORDERS[asked.order]
        found.sort(key=lambda one: order(one, at_s))
    page = found[asked.offset : asked.offset + min(asked.limit, MOST_ROWS)]
    return {"total": len(found), "rows": [_row(story, one, at_s) for one in page]}


def _row(story: Story, one: Attempt, at_s: float) -> dict[str, Any]:
    query = story.work.queries[one.group]
    ending, outcome = _ending(one, at_s), _outcome(one, at_s)
    is_pulled = _by(query.assigned_s, at_s) is not None
    return {
        "execution": one.name,
        "group": one.group,
        "member": one.member,
        "task": query.task,
        "version": query.version,
        "stage": _stage(one, at_s).value,
        # Where it was before it was moved is not kept.
        "engine": one.engine if at_s >= story.now_s else None,
        "launched_s": _by(one.launched_s, at_s),
        "ended_s": _by(one.ended_s, at_s),
        "ran_s": one.ran_s if ending is not None else None,
        "ending": None if ending is None else ending.value,
        "outcome": None if outcome is None else outcome.value,
        "score": one.score if outcome is not None else None,
        # From 1, as steps are counted for people.
        "step": query.step + 1 if is_pulled and query.step is not None else None,
    }


def _by(time_s: float | None, at_s: float) -> float | None:
    return time_s if time_s is not None and time_s <= at_s else None


def _stage(one: Attempt, at_s: float) -> Stage:
    if _by(one.closed_s, at_s) is not None:
        return Stage.CLOSED
    if _by(one.ended_s, at_s) is not None:
        return Stage.TERMINATED
    return Stage.QUEUED if _by(one.launched_s, at_s) is None else Stage.RUNNING


def _ending(one: Attempt, at_s: float) -> Ending | None:
    return one.ending if _by(one.ended_s, at_s) is not None else None


def _outcome(one: Attempt, at_s: float) -> Outcome | None:
    return one.outcome if _by(one.closed_s, at_s) is not None else None


def _ran_s(one: Attempt, at_s: float) -> float:
    """So far, of one that runs."""
    if _by(one.launched_s, at_s) is None or one.launched_s is None:
        return 0.0
    return (_by(one.ended_s, at_s) or at_s) - one.launched_s


def _score(one: Attempt, at_s: float) -> float:
    has_one = one.score is not None and _outcome(one, at_s) is not None
    return one.score if has_one and one.score is not None else _LAST
