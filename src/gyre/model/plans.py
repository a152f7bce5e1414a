"""How a pack's attention is cut into tiles: squares at the end of paths, and what is before."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gyre.model.packed_batch import PackSegment

Indices = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """The queries of one segment, with the last few tokens of the path before them.

    Its sizes are multiples of a grain, so that few kernels serve packs of all lengths.
    """

    rows: Indices
    """Tokens of the square, in path order; the last is repeated to fill it up. Repeated rows come
    after the real ones, which therefore do not see them."""
    first: int
    last: int
    """rows[first:last] are the segment; those before are context, those after padding."""
    context: Indices
    """Tokens of the path before the square."""

    @property
    def num_pairs(self) -> float:
        """Query-key pairs that are computed, half of the square among them."""
        return len(self.rows) * (len(self.rows) / 2 + len(self.context))


def tiles(segments: Sequence[PackSegment], grain: int) -> list[Tile]:
    """One tile per segment."""
    made = []
    for one in segments:
        spans = [np.arange(begin, end) for begin, end in one.ancestors]
        path = np.concatenate(spans) if spans else np.empty(0, np.int64)
        cut = len(path) // grain * grain
        rows = np.concatenate([path[cut:], np.arange(one.begin, one.end)])
        filled = np.concatenate([rows, np.full(-len(rows) % grain, rows[-1])])
        made.append(Tile(rows=filled, first=len(path) - cut, last=len(rows), context=path[:cut]))
    return made


def pairs_in_blocks(tout: NDArray[np.integer], block: int) -> float:
    """Query-key pairs of the square blocks in which anything is visible."""
    last_query = np.maximum.reduceat(tout, np.arange(0, len(tout), block)) - 1
    first_block = np.arange(len(last_query))
    return float((last_query // block - first_block + 1).sum()) * block * block
