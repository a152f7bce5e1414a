"""Step, staleness and phase panels."""

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any

from gyre.observability.dashboard.series import ViewWindow, columns, named
from gyre.observability.history.run import RunHistory
from gyre.observability.history.state import Publication
from gyre.observability.history.steps import StepRecord, until
from gyre.observability.staleness import in_a_whole_run, in_order, in_the_long_run
from gyre.scheduler.groups import Staleness
from gyre.scheduler.messages import StopReason
from gyre.scheduler.policies import Boundary


def admission_phase(history: RunHistory, at_s: float) -> float | None:
    """alpha: part of the interval between publications that had passed when groups were admitted,
    over intervals that have ended (app:dispatch-metrics)."""
    published = [0.0, *(publication.at_s for publication in history.publications_until(at_s))]
    phases = []
    for query in history.work.queries:
        place = bisect_right(published, query.admitted_s)
        if place < len(published) and query.admitted_s <= at_s:
            interval_s = published[place] - published[place - 1]
            phases.append((query.admitted_s - published[place - 1]) / interval_s)
    return sum(phases) / len(phases) if phases else None


def completion_phase(history: RunHistory, at_s: float) -> float | None:
    """beta: from the start of the step before the consuming one to readiness, in mean steps."""
    opened = history.opened_s[: bisect_right(history.opened_s, at_s)]
    waited = list(_waited(history, len(history.steps.until(at_s))))
    if len(opened) < 2 or not waited or opened[-1] <= opened[0]:
        return None
    step_s = (opened[-1] - opened[0]) / (len(opened) - 1)
    return sum(waited) / len(waited) / step_s


def _waited(history: RunHistory, num_steps: int) -> Iterator[float]:
    for query in history.work.queries:
        if query.step is not None and 0 < query.step < num_steps and query.ready_s is not None:
            yield query.ready_s - history.opened_s[query.step - 1]


def _inside(part: str, name: str) -> Callable[[StepRecord], Any]:
    """A field of a part that only a live run's steps have."""

    def value(step: StepRecord) -> Any:
        found = getattr(step, part)
        return None if found is None else getattr(found, name)

    return value


def _named_inside(part: str, *names: str) -> dict[str, Callable[[StepRecord], Any]]:
    return {name: _inside(part, name) for name in names}


STEP: dict[str, Callable[[StepRecord], Any]] = {
    "step": attrgetter("number"),
    **named("at_s", "took_s", "staleness", "num_training", "num_void", "claim_s"),
    **_named_inside("made", "reward", "loss", "gradient_norm", "is_clipped"),
    "num_claims": lambda one: None if one.made is None else sum(one.made.claims.values()),
    "reduce_s": _inside("made", "reduce_s"),
    "update_s": _inside("made", "step_s"),
    **_named_inside("packed", "trajectories", "tokens", "row_tokens", "targets"),
    **_named_inside("objective", "mean_ratio", "capped", "raised_clipped", "lowered_clipped"),
    **_named_inside("objective", "clipped", "max_gap"),
}
"""Columns of the panel of steps."""


def steps(history: RunHistory, view: ViewWindow) -> dict[str, list[Any]]:
    """Every update up to the moment, also outside the window: learning is seen as a whole."""
    return columns(history.steps.until(view.at_s), STEP)


def evaluation(history: RunHistory, view: ViewWindow) -> dict[str, list[Any]]:
    """Rounds of held-out evaluation."""
    names = ("version", "mean", "standard_error", "num_valid", "num_tasks")
    values = {name: attrgetter(f"fact.{name}") for name in names}
    return columns(until(history.steps.rounds, view.at_s), named("at_s") | values)


def publications(history: RunHistory, view: ViewWindow) -> dict[str, list[Any]]:
    """Every publication; what it took is known where a journal has run events."""
    facts = {
        publication.fact.version: publication.fact
        for publication in until(history.steps.publications, view.at_s)
    }

    def of_fact(name: str) -> Callable[[Publication], Any]:
        return lambda one: getattr(facts.get(one.version), name, None)

    values = {name: of_fact(name) for name in ("save_s", "load_s", "num_bytes")}
    return columns(history.publications_until(view.at_s), named("version", "at_s") | values)


def checkpoints(history: RunHistory, view: ViewWindow) -> dict[str, list[Any]]:
    """Every version that is durable, and what that took."""
    names = ("version", "seconds", "stalled_s", "copied_s", "num_bytes", "has_optimizer")
    values = {name: attrgetter(f"fact.{name}") for name in names}
    return columns(until(history.steps.checkpoints, view.at_s), named("at_s") | values)


def staleness(history: RunHistory, view: ViewWindow) -> dict[str, Any]:
    """Ages of consumed groups beside what dispatch alone decides (SPEC 1.4)."""
    shape, taken = history.shape, history.steps.until(view.at_s)
    ages: Counter[int] = Counter()
    for step in taken:
        ages.update(dict(step.ages))
    expected = in_order(shape, steps=len(taken))
    is_whole = len(taken) == shape.steps and history.scheduler.stopped is StopReason.FINISHED
    whole = in_a_whole_run(shape) if is_whole else None
    is_boundary = isinstance(shape.dispatch, Boundary)
    mean = sum(a * n for a, n in ages.items()) / ages.total() if ages else None
    alpha = admission_phase(history, view.at_s)
    published = _published(history, view.at_s)
    return {
        "histogram": _pairs(ages),
        "in_order": None if expected is None else _pairs(expected),
        "mean": mean,
        "predicted": in_the_long_run(shape, published),
        "whole_run": None if whole is None else float(whole),
        "mean_ready": published.ready_at_publication / published.publications
        if published.publications
        else None,
        "admission_phase": alpha,
        "completion_phase": completion_phase(history, view.at_s),
        "interpolated": None if mean is None or alpha is None else mean - alpha,
        "formula": "phi + (mu - 1)/2" if is_boundary else "(Q + R)/B + (mu - 1)/2",
        "identity": _identity(taken),
    }


def _pairs(ages: Mapping[int, int]) -> list[list[int]]:
    return [[age, groups] for age, groups in sorted(ages.items())]


def _published(history: RunHistory, at_s: float) -> Staleness:
    """Ready groups at publications, as a prediction is made from them."""
    found = Staleness()
    for publication in history.publications_until(at_s):
        found.publish(ready=publication.ready)
    return found


def _identity(taken: Sequence[StepRecord]) -> dict[str, Any]:
    found = taken[-1].identity if taken else Staleness().identity(0)
    return {
        "consumed": found.consumed,
        "outstanding": found.outstanding,
        "survivors": found.survivors,
        "lag": found.lag,
        "holds": all(step.identity.holds for step in taken),
    }
