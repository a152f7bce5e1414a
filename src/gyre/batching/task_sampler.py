"""Which query is next: a seeded permutation per epoch, none while it is out (SPEC 1.1)."""

from collections import deque
from random import Random

from gyre.types.errors import InternalError


class TaskSampler:
    """Draws the next query: a seeded permutation per epoch, without those still in use."""

    def __init__(self, count: int, *, seed: int) -> None:
        if count < 1:
            raise InternalError("queries: there are none to draw from")
        self._count = count
        self._seed = seed
        self._epoch = 0
        self._left: deque[int] = deque()
        self._outstanding: dict[int, int] = {}
        self.num_drawn = 0

    def draw(self) -> int:
        """The next query; one that is out is passed over, unless every one is.

        What is passed over keeps its turn, so that an epoch still has each query once.
        """
        if not self._left:
            self._left.extend(self._permutation())
        if len(self._left) < self._count and all(task in self._outstanding for task in self._left):
            # What is left of this epoch is all out, so the next one begins behind it.
            self._left.extend(self._permutation())
        free = (place for place, one in enumerate(self._left) if one not in self._outstanding)
        place = next(free, 0)
        drawn = self._left[place]
        del self._left[place]
        self._outstanding[drawn] = self._outstanding.get(drawn, 0) + 1
        self.num_drawn += 1
        return drawn

    def done(self, query: int) -> None:
        """Notes that a group of this query is consumed."""
        if query not in self._outstanding:
            raise InternalError(f"query {query}: done, and not out")
        self._outstanding[query] -= 1
        if not self._outstanding[query]:
            del self._outstanding[query]

    def _permutation(self) -> list[int]:
        found = Random(f"{self._seed}/queries/{self._epoch}").sample(
            range(self._count), self._count
        )
        self._epoch += 1
        return found
