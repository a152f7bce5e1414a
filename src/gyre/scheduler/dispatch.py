"""How many groups are admitted when: at burst boundaries, or as soon as a slot is free."""

from dataclasses import dataclass

TOLERANCE = 1e-9
"""A product of two floats this near a whole number is taken for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Boundary:
    """(phi + mu) * B groups at the start, mu * B after each publication (SPEC 1.1)."""

    extra_dispatch: float = 0.5
    """phi, in batches; phi * B is whole."""

    def at_start(self, *, batch: int, burst: int) -> int:
        """`batch` is B and `burst` mu * B, in groups."""
        return round(self.extra_dispatch * batch) + burst

    def at_publication(self, *, burst: int) -> int:
        return burst

    def at_ready(self) -> int:
        return 0

    def standing_groups(self) -> int:
        """Groups whose room is reserved although they are not admitted yet."""
        return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Continuous:
    """A fixed number of unfinished groups, each replaced as soon as it is ready (SPEC 1.5)."""

    depth: int
    """Q_c."""

    def at_start(self, *, batch: int, burst: int) -> int:
        return self.depth

    def at_publication(self, *, burst: int) -> int:
        return 0

    def at_ready(self) -> int:
        return 1

    def standing_groups(self) -> int:
        return self.depth


Dispatch = Boundary | Continuous
