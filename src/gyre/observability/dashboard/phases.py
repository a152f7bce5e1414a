"""Where between publications groups were admitted, and where in a step they became ready."""

from bisect import bisect_right
from collections.abc import Iterator

from gyre.observability.history.run import RunHistory


def admission_phase(story: RunHistory, at_s: float) -> float | None:
    """alpha: part of the interval between publications that had passed when groups were admitted,
    over intervals that have ended (app:dispatch-metrics)."""
    published = [0.0, *(one.at_s for one in story.publications_until(at_s))]
    phases = []
    for query in story.work.queries:
        place = bisect_right(published, query.admitted_s)
        if place < len(published) and query.admitted_s <= at_s:
            interval_s = published[place] - published[place - 1]
            phases.append((query.admitted_s - published[place - 1]) / interval_s)
    return sum(phases) / len(phases) if phases else None


def completion_phase(story: RunHistory, at_s: float) -> float | None:
    """beta: from the start of the step before the consuming one to readiness, in mean steps."""
    opened = story.opened_s[: bisect_right(story.opened_s, at_s)]
    waited = list(_waited(story, len(story.steps.until(at_s))))
    if len(opened) < 2 or not waited or opened[-1] <= opened[0]:
        return None
    step_s = (opened[-1] - opened[0]) / (len(opened) - 1)
    return sum(waited) / len(waited) / step_s


def _waited(story: RunHistory, num_steps: int) -> Iterator[float]:
    for query in story.work.queries:
        if query.step is not None and 0 < query.step < num_steps and query.ready_s is not None:
            yield query.ready_s - story.opened_s[query.step - 1]
