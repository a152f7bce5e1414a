"""Where an execution's last requests stood, so that the next one is matched from there on.

A history is mostly the one before it with a little more at its end. Trails are a short cut only:
whatever they skip has been matched before, and a request that leaves them is matched from the root.
"""

from array import array
from collections import deque
from dataclasses import dataclass

from gyre.types.ids import SegmentId

HASH_BYTES = 16
MOST_TRAILS = 4
"""Agents of an execution that talk in turns; the one silent for longest is forgotten first."""
FEWEST_UNITS = 8
"""Shorter histories are matched as quickly from the root."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryFingerprint:
    """What is needed to recognise a request's history in a later one."""

    scope: tuple[str, bytes]
    """Dialect and preface."""
    hashes: bytes
    """Hash of each wire message, end to end."""
    starts: "array[int]"
    """Per unit: the wire message it begins with, times two, plus one if not at its beginning."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumePoint:
    """A request that was answered: its history, and the segments that hold it."""

    mark: HistoryFingerprint
    path: "array[int]"
    """The preface's segment, then one per unit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumption:
    """The part of a new history that a trail already holds."""

    path: list[SegmentId]
    """The preface's segment and one per unit that is skipped."""
    starts: "array[int]"
    next_message: int
    """The first wire message that has to be looked at."""


class ResumePoints:
    """The last few trails of one execution."""

    def __init__(self, *, fewest_units: int = FEWEST_UNITS) -> None:
        self._fewest_units = fewest_units
        self._trails: deque[ResumePoint] = deque(maxlen=MOST_TRAILS)

    def keep(self, trail: ResumePoint) -> None:
        """The newest trail; one that it continues is dropped."""
        if len(trail.path) <= self._fewest_units:
            return
        for old in self._trails:
            same = old.mark.scope == trail.mark.scope
            if same and _common(old.mark.hashes, trail.mark.hashes) > self._fewest_units // 2:
                self._trails.remove(old)
                break
        self._trails.append(trail)

    def resume(self, scope: tuple[str, bytes], hashes: bytes) -> Resumption | None:
        """The longest beginning of this history that any trail holds."""
        best: tuple[int, ResumePoint] | None = None
        for trail in self._trails:
            if trail.mark.scope != scope:
                continue
            common = _common(trail.mark.hashes, hashes)
            if best is None or common > best[0]:
                best = (common, trail)
        return None if best is None else self._resumption(best[1], best[0])

    def _resumption(self, trail: ResumePoint, common: int) -> Resumption | None:
        """Units that end before one which begins, cleanly, with a message that is common too."""
        starts = trail.mark.starts
        unit = min(len(starts), len(trail.path) - 1) - 1
        while unit >= self._fewest_units and (starts[unit] % 2 or starts[unit] // 2 >= common):
            unit -= 1
        if unit < self._fewest_units:
            return None
        return Resumption(
            path=[SegmentId(one) for one in trail.path[: unit + 1]],
            starts=starts[:unit],
            next_message=starts[unit] // 2,
        )


def _common(left: bytes, right: bytes) -> int:
    """How many leading hashes are equal."""
    low, high = 0, min(len(left), len(right)) // HASH_BYTES
    if left[: high * HASH_BYTES] == right[: high * HASH_BYTES]:
        return high
    while low + 1 < high:
        middle = (low + high) // 2
        if left[: middle * HASH_BYTES] == right[: middle * HASH_BYTES]:
            low = middle
        else:
            high = middle
    return low
