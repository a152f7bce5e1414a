"""One pass over the network: tokens of calls in, logits of the calls that sample out."""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Protocol

import numpy as np
from torch import Tensor

from gyre.inference.engine.sampler import BatchSampling
from gyre.inference.engine.scheduler import ScheduledChunk
from gyre.types.training import Ints


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardBatch:
    """T tokens of S calls, each call's tokens together and in order.

    Call s computes tokens starts[s] to starts[s + 1], the last ones of its lengths[s]; its token p
    lies in slot blocks[s, p // block_tokens] * block_tokens + p % block_tokens.
    """

    ids: Ints
    """T."""
    positions: Ints
    """T: distance from the beginning of the call."""
    slots: Ints
    """T: where keys and values go; no slot twice."""
    starts: Ints
    """S + 1: where each call's tokens begin; the last entry is T."""
    lengths: Ints
    """S: tokens of each call that are visible to its last one, itself included."""
    blocks: Ints
    """(S, most blocks): rows are filled up with block 0, which `lengths` leaves out."""
    wanted: Ints
    """W: calls whose next token is to be sampled, after their last token here."""

    @property
    def is_decode(self) -> bool:
        """Every call computes one token."""
        return len(self.ids) == len(self.lengths)


class Forward(Protocol):
    """The network over a pass; holds on to the store and to all it derives from weights."""

    returns_early: bool
    """A call returns while the device computes, so the next pass is better launched meanwhile."""

    def __call__(self, work: ForwardBatch, ids: Tensor | None = None) -> Tensor:
        """Logits (W, vocabulary) in the network's own type; the store has the pass's keys.

        Given ids are on the device and stand for those of the pass, which are not known yet.
        """
        ...

    def sample(self, logits: Tensor, draws: BatchSampling) -> tuple[Tensor, Tensor]:
        """What `sample_packed` gives for the logits of the last pass; it stands until the next."""
        ...

    def reload(self) -> None:
        """The weights have other values now, at the same place."""
        ...

    def forget(self) -> None:
        """Drops what was derived from weights or store, which are about to be given back."""
        ...


def lay_out(parts: Sequence[ScheduledChunk], block_tokens: int) -> ForwardBatch:
    """The parts of a turn as one pass, in their order; ids that are not known yet are 0."""
    calls, begins, ends, is_last = zip(*parts, strict=True)
    first, lengths = np.array(begins, np.int32), np.array(ends, np.int32)
    starts = np.zeros(len(parts) + 1, np.int32)
    np.cumsum(lengths - first, out=starts[1:])
    rows, positions = np.arange(len(parts)), first
    if starts[-1] > len(parts):
        rows = np.repeat(rows, lengths - first)
        positions = np.arange(starts[-1], dtype=np.int32) + (first - starts[:-1])[rows]
    held = [call.blocks for call in calls]
    counts = np.array([len(one) for one in held])
    blocks = np.zeros((len(parts), counts.max()), np.int32)
    # One array of all and not one each, because a pass may have hundreds of calls.
    blocks[np.arange(blocks.shape[1]) < counts[:, None]] = list(chain.from_iterable(held))
    return ForwardBatch(
        ids=_ids(parts),
        positions=positions,
        slots=blocks[rows, positions // block_tokens] * block_tokens + positions % block_tokens,
        starts=starts,
        lengths=lengths,
        blocks=blocks,
        wanted=np.flatnonzero(is_last).astype(np.int32),
    )


def _ids(parts: Sequence[ScheduledChunk]) -> Ints:
    tokens = array("i")
    for call, start, end, _ in parts:
        known = call.tokens
        if end - start > 1:
            tokens += known[start:end]
        else:
            tokens.append(known[start] if start < len(known) else 0)
    return np.frombuffer(tokens, np.int32)
