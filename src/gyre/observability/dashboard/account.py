"""Where the time of cells and engines went: serving, training, and what they waited for.

Rule 1: the causes of a cell sum to all of its time, in every slice of it.
"""

from collections.abc import Iterator, Sequence
from enum import Enum
from itertools import pairwise

from gyre.observability.history.run import RunHistory
from gyre.observability.history.seen import CellSpan
from gyre.scheduler.cells import CellState


class Cause(Enum):
    """What time went to."""

    SERVING = "serving"
    """Engines at home, by the part of their seats that was taken."""
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

    def __init__(self, story: RunHistory, edges: Sequence[float]) -> None:
        self._story = story
        self.edges = edges
        self._knows_claims = any(story.fleet.busy)
        self.seconds: list[list[list[float]]] = [
            [self._slice(engine, since, until) for since, until in pairwise(edges)]
            for engine in range(len(story.fleet.capacities))
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
        for span in self._story.fleet.spans(engine, since_s, until_s):
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
                weights = self._story.fleet.weights[engine]
                pulled = min(whole, weights.inside(span.start_s, span.end_s))
                yield Cause.WEIGHTS, pulled
                yield Cause.SWITCHING, whole - pulled
            case state:
                yield _SIMPLE[state], whole

    def _taken(self, engine: int, span: CellSpan) -> float:
        fleet = self._story.fleet
        seat_s = fleet.seat_s(engine, span.end_s) - fleet.seat_s(engine, span.start_s)
        return seat_s / fleet.capacities[engine]

    def _training(self, cell: int, span: CellSpan, whole: float) -> Iterator[tuple[Cause, float]]:
        """Without facts on claims, all time in training counts as work."""
        between = self._between_bursts(span)
        if not self._knows_claims:
            yield Cause.PUBLICATION, between
            yield Cause.TRAINING, whole - between
            return
        busy = min(whole, self._story.fleet.busy[cell].inside(span.start_s, span.end_s))
        between = min(between, whole - busy)
        yield Cause.TRAINING, busy
        yield Cause.PUBLICATION, between
        yield Cause.ROLLOUTS, whole - busy - between

    def _between_bursts(self, span: CellSpan) -> float:
        found = self._story.publishing.inside(span.start_s, span.end_s)
        since_s = self._story.publishing_since_s
        if since_s is not None:
            found += max(0.0, span.end_s - max(span.start_s, since_s))
        return found
