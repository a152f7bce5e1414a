"""How old groups are when they are trained, and the identity that holds for their ages.

Rule 1: after every update, staleness of the consumed + age of the outstanding = survivors summed
over updates + lag at admission, in integers; the lag is 0 under boundary dispatch (SPEC 1.4).
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Four sums after an update, in integers (SPEC 1.4)."""

    consumed: int
    """Staleness of all groups consumed so far."""
    outstanding: int
    """Age of the groups that are admitted and not consumed."""
    survivors: int
    """Groups that an update left, summed over updates."""
    lag: int
    """Versions the trainer was ahead at admissions; 0 under boundary dispatch."""

    @property
    def holds(self) -> bool:
        return self.consumed + self.outstanding == self.survivors + self.lag


class Staleness:
    """Ages in versions: v_t - v_d of consumed groups, and of those that are not yet."""

    def __init__(self) -> None:
        self.histogram: Counter[int] = Counter()
        """Groups consumed, by staleness."""
        self.consumed = 0
        """Sum over consumed groups."""
        self.survivors = 0
        """Groups that an update left, summed over updates."""
        self.lag_at_admission = 0
        """Versions the trainer was ahead of the published one when groups were admitted."""
        self.ready_at_publication = 0
        """Ready groups at publications, summed (R is their mean)."""
        self.publications = 0
        self._outstanding = 0
        self._versions = 0

    def admit(self, *, version: int, trainer_version: int) -> None:
        self._outstanding += 1
        self._versions += version
        self.lag_at_admission += trainer_version - version

    def update(self, *, trainer_version: int, consumed: Iterable[int]) -> None:
        """Counts an update from this version that consumed groups admitted under those versions."""
        for version in consumed:
            self.histogram[trainer_version - version] += 1
            self.consumed += trainer_version - version
            self._outstanding -= 1
            self._versions -= version
        self.survivors += self._outstanding

    def publish(self, *, ready: int) -> None:
        self.publications += 1
        self.ready_at_publication += ready

    def outstanding_age(self, trainer_version: int) -> int:
        return trainer_version * self._outstanding - self._versions

    def identity(self, trainer_version: int) -> Identity:
        """After the update that led to this version."""
        return Identity(
            consumed=self.consumed,
            outstanding=self.outstanding_age(trainer_version),
            survivors=self.survivors,
            lag=self.lag_at_admission,
        )

    @property
    def mean(self) -> float | None:
        groups = self.histogram.total()
        return self.consumed / groups if groups else None
