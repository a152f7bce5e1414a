"""Paths of tokens side by side, in an order in which each shared prefix can stand once."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cmp_to_key

import numpy as np
from numpy.typing import NDArray

from gyre.trajectory.arena import Ids

Counts = NDArray[np.int64]
Ranks = NDArray[np.intp]
"""Places in a forest's order, increasing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlattenedForest:
    """Some paths of a forest in depth-first order, T tokens in all."""

    ids: Ids
    positions: NDArray[np.int32]
    tout: NDArray[np.int32]
    """T: index just after the token's subtree."""
    asked: tuple[NDArray[np.int32], ...]
    """Per path: where the tokens at the depths asked for stand."""


class Forest:
    """Paths that share what is equal from their beginning, or with `sharing` off, nothing.

    Sorted by their tokens, a path shares with the one before it at least what it shares with any
    earlier one; of two paths the part in common is the least of the parts between neighbours.
    """

    def __init__(self, paths: Sequence[Ids], *, sharing: bool) -> None:
        numbers = list(range(len(paths)))
        if sharing:
            by_tokens = cmp_to_key(_compare)
            numbers.sort(key=lambda number: by_tokens(paths[number]))
        self.order = tuple(numbers)
        """Per rank: which of the given paths stands there."""
        self._paths = [paths[number] for number in numbers]
        self.lengths: Counts = np.array([len(path) for path in self._paths], dtype=np.int64)
        self._common: Counts = np.zeros(len(paths), dtype=np.int64)
        if sharing and len(paths) > 1:
            pairs = zip(self._paths, self._paths[1:], strict=False)
            self._common[1:] = [common_prefix(one, two) for one, two in pairs]

    def shared(self, ranks: Ranks) -> Counts:
        """Per path of a choice: how many tokens it has in common with the one before it."""
        found = np.zeros(len(ranks), dtype=np.int64)
        if len(ranks) > 1:
            between = self._common[: ranks[-1] + 1]
            found[1:] = np.minimum.reduceat(between, ranks[:-1] + 1)
        return found

    def num_tokens(self, ranks: Ranks) -> int:
        """How many tokens a choice of paths has once it is laid."""
        return int(self.lengths[ranks].sum() - self.shared(ranks).sum())

    def lay(self, ranks: Ranks, asked: Sequence[NDArray[np.int32]]) -> FlattenedForest:
        """A choice of paths as arrays of their own; `asked` holds some depths of each path."""
        shared = self.shared(ranks).tolist()
        lengths = self.lengths[ranks].tolist()
        bases = np.cumsum([0] + [end - first for first, end in zip(shared, lengths, strict=True)])
        total, longest = int(bases[-1]), max(lengths)
        ids, positions, tout = (np.empty(total, dtype=np.int32) for _ in range(3))
        path = np.empty(longest, dtype=np.int32)
        found = []
        for at, (rank, first, end) in enumerate(zip(ranks, shared, lengths, strict=True)):
            new = slice(bases[at], bases[at + 1])
            ids[new] = self._paths[rank][first:end]
            positions[new] = np.arange(first, end, dtype=np.int32)
            path[first:end] = np.arange(bases[at], bases[at + 1], dtype=np.int32)
            found.append(path[asked[at]])
        # From the last path to the first: at each depth, where the next path that differs begins.
        ends = np.full(longest, total, dtype=np.int32)
        for at in range(len(ranks) - 1, -1, -1):
            tout[bases[at] : bases[at + 1]] = ends[shared[at] : lengths[at]]
            ends[shared[at] :] = bases[at]
        return FlattenedForest(ids=ids, positions=positions, tout=tout, asked=tuple(found))

    def split(self, ranks: Ranks, most_tokens: int) -> list[Ranks]:
        """Neighbouring paths in parts of at most so many tokens, with the fewest tokens in all.

        Of equal ways the one with the fewest parts; a longer path is a part of its own.
        """
        shared = np.cumsum(self.shared(ranks))
        whole = np.concatenate([[0], np.cumsum(self.lengths[ranks])])
        num_paths = len(ranks)
        best = np.zeros(num_paths + 1, dtype=np.int64)
        begins = np.zeros(num_paths + 1, dtype=np.intp)
        for end in range(1, num_paths + 1):
            # The tokens of the part [begin, end), for each begin; its first path shares nothing.
            tokens = whole[end] - whole[:end] - (shared[end - 1] - shared[:end])
            allowed = tokens <= most_tokens
            allowed[end - 1] = True
            cost = np.where(allowed, best[:end] + tokens, np.iinfo(np.int64).max)
            # The first of equal ones, because the longest parts are the fewest.
            begin = int(np.argmin(cost))
            best[end], begins[end] = cost[begin], begin
        parts = []
        end = num_paths
        while end:
            parts.append(ranks[begins[end] : end])
            end = int(begins[end])
        return parts[::-1]


def common_prefix(one: Ids, two: Ids) -> int:
    """How many tokens two paths have in common from their beginning."""
    most = min(len(one), len(two))
    start, width = 0, 64
    while start < most:
        end = min(start + width, most)
        differs = one[start:end] != two[start:end]
        at = int(differs.argmax())
        if differs[at]:
            return start + at
        # Wider and wider, because paths differ early or have much in common.
        start, width = end, 2 * width
    return most


def _compare(one: Ids, two: Ids) -> int:
    at = common_prefix(one, two)
    if at == min(len(one), len(two)):
        return len(one) - len(two)
    return int(one[at]) - int(two[at])
