"""Panels on executions and faults: how long things took, how they ended, what went wrong."""

from collections import Counter
from typing import Any

from gyre.observability.dashboard.histograms import histogram, round_up_time
from gyre.observability.dashboard.view import ViewWindow
from gyre.observability.history.run import RunHistory
from gyre.types.outcomes import Ending

MOST_FAULTS = 200
ENDINGS = tuple(one.value for one in Ending)


def durations(story: RunHistory, view: ViewWindow) -> dict[str, Any]:
    """Of executions from launch to termination, and of each query's longest one."""
    work = story.work
    ran = work.until(work.executions, view.to_s, since_s=view.from_s)
    longest = work.until(work.longest, view.to_s, since_s=view.from_s)
    late = Ending.TIMED_OUT
    return {
        "executions": histogram(
            ((one.seconds, one.ending.value) for one in ran), kinds=ENDINGS, rounded=round_up_time
        ),
        "queries": histogram(
            ((one.seconds, late.value if one.ending is late else "all") for one in longest),
            kinds=("all", late.value),
            rounded=round_up_time,
        ),
    }


def faults(story: RunHistory, view: ViewWindow) -> dict[str, Any]:
    """What went wrong up to the moment."""
    found = list(story.faults.until(view.at_s))
    shown = [one for one in found if one.at_s >= view.from_s][-MOST_FAULTS:]
    return {
        "counts": dict(Counter(one.kind for one in found)),
        "rows": [
            {
                "at_s": one.at_s,
                "kind": one.kind,
                "text": one.text,
                "cell": one.cell,
                "engine": one.engine,
                "repaired_s": one.mended_at_s - one.at_s
                if one.mended_at_s is not None and one.mended_at_s <= view.at_s
                else None,
            }
            for one in shown
        ],
    }
