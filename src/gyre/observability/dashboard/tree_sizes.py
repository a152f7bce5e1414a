"""Sizes of a run's trees, read from its call logs in the background, one after the other.

Rule 1: nothing is read before a page asks, and of a long run only so many, spread over it.
"""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any, TypeVar

from gyre.observability.dashboard.journal_follower import FollowedRun
from gyre.observability.dashboard.panels import ENDINGS
from gyre.observability.dashboard.series import ViewWindow, histogram, round_up_count
from gyre.trajectory.loading import load
from gyre.trajectory.tree import Tree
from gyre.types.errors import ConfigError, LogDamaged

MOST_TREES = 2000
"""That are read of one run."""

Found = TypeVar("Found")


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeSize:
    """Calls, tokens and leaves of one tree; shared prefixes count once."""

    tokens: int
    sampled: int
    """Tokens that engines gave."""
    calls: int
    tool_calls: int
    leaves: int


def size(tree: Tree) -> TreeSize:
    nodes = list(tree.calls.values())
    return TreeSize(
        tokens=tree.num_tokens,
        sampled=sum(node.num_output for node in nodes),
        calls=len(nodes),
        tool_calls=sum(len(node.message.calls) for node in nodes),
        leaves=len(list(tree.leaves())),
    )


def trees(
    sizes: Iterable[tuple[TreeSize, str]], *, num_closed: int, kinds: tuple[str, ...]
) -> dict[str, Any]:
    """The panel: a histogram of each number, by how executions ended."""
    found = list(sizes)
    return {"num_read": len(found), "num_closed": num_closed} | {
        field.name: histogram(
            ((float(getattr(tree, field.name)), kind) for tree, kind in found),
            kinds=kinds,
            rounded=round_up_count,
        )
        for field in fields(TreeSize)
    }


@dataclass(frozen=True, slots=True)
class _Sized:
    size: TreeSize
    ending: str
    closed_s: float


class TreeSizes:
    """Sizes of trees by execution, as far as they have been read."""

    def __init__(self, run: FollowedRun) -> None:
        self._run = run
        self._sizes: dict[str, _Sized | None] = {}
        """None where a log cannot be read."""
        self._reading: asyncio.Task[None] | None = None

    def panel(self, view: ViewWindow | None = None) -> dict[str, Any] | None:
        """What is known now of executions that closed in the view, or at any time; what is not
        known is being read."""
        history = self._run.history
        if history is None:
            return None
        chosen = self._chosen()
        missing = [one for one in chosen if one[0] not in self._sizes]
        if missing and (self._reading is None or self._reading.done()):
            self._reading = asyncio.create_task(self._read(missing))
        closed_s = [at_s for times in history.work.closed.values() for at_s in times]
        found = [one for name, *_ in chosen if (one := self._sizes.get(name)) is not None]
        known = trees(
            [(one.size, one.ending) for one in found if _is_in(one.closed_s, view)],
            num_closed=sum(_is_in(at_s, view) for at_s in closed_s),
            kinds=ENDINGS,
        )
        return known | {"is_reading": bool(missing)}

    async def wait_read(self) -> None:
        """Returns when all trees that a page asked for are read."""
        if self._reading is not None:
            await self._reading

    async def _read(self, missing: list[tuple[str, str, float]]) -> None:
        for name, ending, closed_s in missing:
            found = await asyncio.to_thread(self._size, name)
            self._sizes[name] = None if found is None else _Sized(found, ending, closed_s)

    def _chosen(self) -> list[tuple[str, str, float]]:
        """Closed executions among those that are looked at."""
        assert self._run.history is not None
        return [
            (attempt.name, attempt.ending.value, attempt.closed_s)
            for attempt in evenly_spaced(self._run.history.work.attempts, most=MOST_TREES)
            if attempt.closed_s is not None
            and attempt.name is not None
            and attempt.ending is not None
        ]

    def _size(self, name: str) -> TreeSize | None:
        path = self._run.log_of(name)
        if path is None:
            return None
        try:
            return size(load(path).tree)
        except (ConfigError, LogDamaged):
            return None


def _is_in(closed_s: float, view: ViewWindow | None) -> bool:
    return view is None or view.from_s <= closed_s <= view.to_s


def evenly_spaced(found: Sequence[Found], *, most: int) -> Sequence[Found]:
    """At most so many of them, at even distances; when more come, all or a third of those are
    among them that were before."""
    stride = 1
    while len(found) > most * stride:
        # Not two, because then of each group of eight the same member would be taken.
        stride *= 3
    return found[::stride]
