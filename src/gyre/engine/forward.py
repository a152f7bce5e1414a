"""One pass over the network: some tokens of some calls in, logits of those that want a next out."""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Protocol

import numpy as np
from torch import Tensor

from gyre.engine.batch import Part
from gyre.words.packs import Ints


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
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
    """The network over a pass; holds on to the store and to whatever it derives from weights."""

    returns_early: bool
    """A call returns while the device computes, so the next pass is better launched meanwhile."""

    def __call__(self, work: Pass, ids: Tensor | None = None) -> Tensor:
        """Logits (W, vocabulary) in the network's own type; the store has the pass's keys.

        Given ids are on the device and stand for those of the pass, which are not known yet.
        """
        ...

    def reload(self) -> None:
        """The weights have other values now, at the same place."""
        ...

    def forget(self) -> None:
        """Drops what was derived from weights or store, which are about to be given back."""
        ...


def lay_out(parts: Sequence[Part], block_tokens: int) -> Pass:
    """The parts of a turn as one pass, in their order; ids that are not known yet are 0."""
    begins = np.array([part.start for part in parts], np.int32)
    lengths = np.array([part.end for part in parts], np.int32)
    starts = np.zeros(len(parts) + 1, np.int32)
    np.cumsum(lengths - begins, out=starts[1:])
    rows = np.repeat(np.arange(len(parts)), lengths - begins)
    counts = [len(part.call.blocks) for part in parts]
    positions = np.arange(starts[-1], dtype=np.int32) + (begins - starts[:-1])[rows]
    blocks = np.zeros((len(parts), max(counts)), np.int32)
    # One array of all and not one each, because a pass may have hundreds of calls.
    filled = np.arange(blocks.shape[1]) < np.array(counts)[:, None]
    blocks[filled] = list(chain.from_iterable(part.call.blocks for part in parts))
    tokens = array("i")
    for part in parts:
        known = part.call.tokens
        if part.end - part.start == 1:
            tokens.append(known[part.start] if part.start < len(known) else 0)
        else:
            tokens += known[part.start : part.end]
    return Pass(
        ids=np.array(tokens, np.int32),
        positions=positions,
        slots=blocks[rows, positions // block_tokens] * block_tokens + positions % block_tokens,
        starts=starts,
        lengths=lengths,
        blocks=blocks,
        wanted=np.flatnonzero([part.is_last for part in parts]).astype(np.int32),
    )
