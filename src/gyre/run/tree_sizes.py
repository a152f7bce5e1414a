"""Sizes of a run's trees, read from its call logs in the background, one after the other.

Rule 1: nothing is read before somebody looks, and of a long run only so many, spread over it.
"""

import asyncio
from collections.abc import Sequence
from typing import Any, TypeVar

from gyre.run.watched import Watched
from gyre.watch.panels_work import ENDINGS
from gyre.watch.runs import load
from gyre.watch.sizes import Size, size, trees
from gyre.words.errors import ConfigError, LogDamaged

MOST_TREES = 2000
"""That are read of one run."""

Found = TypeVar("Found")


class TreeSizes:
    """Sizes by execution, as far as they are known."""

    def __init__(self, run: Watched) -> None:
        self._run = run
        self._sizes: dict[str, tuple[Size, str] | None] = {}
        """With how the execution ended; None where its log cannot be read."""
        self._reading: asyncio.Task[None] | None = None

    def panel(self) -> dict[str, Any] | None:
        """What is known now; what is not is being read."""
        story = self._run.story
        if story is None:
            return None
        if self._reading is None or self._reading.done():
            self._reading = asyncio.create_task(self._read())
        closed = sum(len(times) for times in story.work.closed.values())
        found = [one for one in self._sizes.values() if one is not None]
        return trees(found, num_closed=closed, kinds=ENDINGS)

    async def wait_read(self) -> None:
        """Returns when all was read that somebody looked for."""
        if self._reading is not None:
            await self._reading

    async def _read(self) -> None:
        for name, ending in self._missing():
            self._sizes[name] = await asyncio.to_thread(self._size, name, ending)

    def _missing(self) -> list[tuple[str, str]]:
        """Closed executions that were not looked at, spread over the run."""
        assert self._run.story is not None
        closed = [
            (one.name, one.ending.value)
            for one in self._run.story.work.attempts
            if one.closed_s is not None and one.name is not None and one.ending is not None
        ]
        return [one for one in spread(closed, most=MOST_TREES) if one[0] not in self._sizes]

    def _size(self, name: str, ending: str) -> tuple[Size, str] | None:
        path = self._run.log_of(name)
        if path is None:
            return None
        try:
            return size(load(path).tree), ending
        except (ConfigError, LogDamaged):
            return None


def spread(found: Sequence[Found], *, most: int) -> Sequence[Found]:
    """At most so many of them, at even distances."""
    return found[:: max(1, -(-len(found) // most))]
