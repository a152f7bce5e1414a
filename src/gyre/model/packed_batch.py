"""A pack as tensors on a device, with the chains of its depth-first order.

T tokens, padding included; M targets.
"""

from bisect import bisect_left
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gyre.model.network import ModelDims
from gyre.types.errors import CellError
from gyre.types.training import Pack

Interval = tuple[int, int]
"""Begin and end of a run of tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackSegment:
    """A chain of consecutive tokens, as long as it goes, and what its first token sees before it.

    It ends at a leaf, so a pack has as many segments as leaves.
    """

    begin: int
    end: int
    ancestors: tuple[Interval, ...]
    """In path order, none empty, none touching the next or the segment itself."""

    @property
    def num_ancestors(self) -> int:
        """Tokens before the segment on its path."""
        return sum(end - begin for begin, end in self.ancestors)


@dataclass(frozen=True, kw_only=True)
class PackedBatch:
    """One pack ready for a forward pass."""

    pack: Pack
    """As it came, without padding."""
    ids: Tensor
    """T, int64."""
    positions: Tensor
    """T, int64."""
    tout: NDArray[np.int64]
    """T, on the host, where masks are planned."""
    predictors: Tensor
    """M, int64."""
    labels: Tensor
    """M, int64."""
    behaviour: Tensor
    """M, float64, on the host, where the objective is computed."""
    shares: Tensor
    """M, int64, on the host."""

    @property
    def device(self) -> torch.device:
        return self.ids.device

    @property
    def num_tokens(self) -> int:
        """With padding."""
        return len(self.tout)

    @property
    def num_padding(self) -> int:
        return len(self.tout) - len(self.pack.ids)

    @property
    def num_targets(self) -> int:
        return len(self.labels)

    @cached_property
    def segments(self) -> tuple[PackSegment, ...]:
        return segments(self.tout)

    @property
    def is_one_row(self) -> bool:
        """Whether every token sees all before it, so that plain causal attention is right."""
        return bool((self.tout == self.num_tokens).all())


def packed(pack: Pack, device: torch.device | str, *, multiple: int = 1) -> PackedBatch:
    """The pack on a device, padded at the end to a multiple of `multiple` tokens.

    Padding predicts nothing and no token of the pack sees it. Behind a single row it continues
    that row, so that the row stays one; behind anything else it is a row of its own.
    """
    num_tokens = len(pack.ids)
    padding = -num_tokens % multiple
    total = num_tokens + padding
    tout = np.full(total, total, np.int64)
    if not bool((pack.tout == num_tokens).all()):
        tout[:num_tokens] = pack.tout
    zeros = np.zeros(padding, np.int64)
    return PackedBatch(
        pack=pack,
        ids=_on(device, np.concatenate([pack.ids, zeros])),
        positions=_on(device, np.concatenate([pack.positions, zeros])),
        tout=tout,
        predictors=_on(device, pack.predictors.astype(np.int64)),
        labels=_on(device, pack.labels.astype(np.int64)),
        behaviour=_on("cpu", pack.behaviour.astype(np.float64)),
        shares=_on("cpu", pack.shares.astype(np.int64)),
    )


def _on(device: torch.device | str, values: NDArray[np.int64] | NDArray[np.float64]) -> Tensor:
    return torch.from_numpy(values).to(device)


def segments(tout: NDArray[np.integer]) -> tuple[PackSegment, ...]:
    """The chains of a depth-first order, in order; time is O(T) and what the answer holds."""
    leaves = np.flatnonzero(tout == np.arange(1, len(tout) + 1))
    bounds = [0, *(leaves + 1).tolist()]
    found: list[PackSegment] = []
    # Runs that the next token may descend from, each cut to the tokens still open; a run is a
    # chain, along which tout never grows, so the open ones are its beginning.
    path: list[Interval] = []
    for begin, end in pairwise(bounds):
        while path and tout[path[-1][0]] <= begin:
            path.pop()
        if path:
            first, last = path[-1]
            path[-1] = (first, _first_closed(tout, first, last, begin))
        found.append(PackSegment(begin=begin, end=end, ancestors=tuple(path)))
        path.append((begin, end))
    return tuple(found)


def _first_closed(tout: NDArray[np.integer], first: int, last: int, begin: int) -> int:
    return first + bisect_left(range(first, last), True, key=lambda at: bool(tout[at] <= begin))


def check(pack: Pack, shape: ModelDims) -> None:
    """A pack that the model cannot compute is refused by name before anything is computed."""
    num_tokens = len(pack.ids)
    if num_tokens == 0:
        raise _refused("a pack without tokens")
    for name, values, length in (
        ("positions", pack.positions, num_tokens),
        ("tout", pack.tout, num_tokens),
        ("predictors", pack.predictors, len(pack.labels)),
        ("behaviour", pack.behaviour, len(pack.labels)),
        ("shares", pack.shares, len(pack.labels)),
    ):
        if len(values) != length:
            raise _refused(f"a pack with {len(values)} {name} where {length} belong")
    _within("ids", pack.ids, shape.vocabulary, "the vocabulary has")
    _within("labels", pack.labels, shape.vocabulary, "the vocabulary has")
    _within("predictors", pack.predictors, num_tokens, "the pack's tokens are")
    _within("positions", pack.positions, shape.context, "the model's context is")
    if not np.isfinite(pack.behaviour).all():
        index = int(np.flatnonzero(~np.isfinite(pack.behaviour))[0])
        raise _refused(f"behaviour[{index}] is {pack.behaviour[index]}, not a log-probability")
    _check_order(pack)


def _within(name: str, values: NDArray[np.int32], limit: int, of: str) -> None:
    wrong = np.flatnonzero((values < 0) | (values >= limit))
    if len(wrong):
        raise _refused(f"{name}[{wrong[0]}] is {values[wrong[0]]}, and {of} {limit}")


def _check_order(pack: Pack) -> None:
    """Subtrees nest, and each token's position is its depth."""
    tout = pack.tout.astype(np.int64)
    count = len(tout)
    index = np.arange(count)
    wrong = np.flatnonzero((tout <= index) | (tout > count))
    inner = np.flatnonzero(tout[:-1] > index[1:])
    wrong = np.append(wrong, inner[tout[inner + 1] > tout[inner]] + 1)
    if not len(wrong):
        starts = segments(tout)
        wrong = np.array(
            [one.begin for one in starts if one.ancestors and _outgrows(tout, one)], np.int64
        )
    if len(wrong):
        raise _refused(f"tout[{wrong[0]}] is {tout[wrong[0]]}: the subtree is not within another")
    depth = index.copy()
    for one in starts:
        depth[one.begin : one.end] += one.num_ancestors - one.begin
    wrong = np.flatnonzero(depth != pack.positions)
    if len(wrong):
        at = wrong[0]
        raise _refused(
            f"positions[{at}] is {pack.positions[at]}, and its path makes it {depth[at]}"
        )


def _outgrows(tout: NDArray[np.int64], segment: PackSegment) -> bool:
    return bool(tout[segment.begin] > tout[segment.ancestors[-1][1] - 1])


def _refused(found: str) -> CellError:
    return CellError(f"cannot train on this pack: {found}", retryable=False)
