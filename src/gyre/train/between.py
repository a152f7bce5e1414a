"""Cells of one model sum their gradients at the first and take its weights, rank by rank.

Rule 1: a group is a prefix of an order of cells; an epoch has one order, a failure begins another.
Rule 2: only scratch copies travel, because a reduction overwrites what its senders hold (SPEC 3.3).
"""

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import xxhash
from torch import Tensor
from torch.distributed import FileStore  # type: ignore[attr-defined]
from torch.distributed import distributed_c10d as groups

from gyre.train.lines import Line
from gyre.words.errors import CellError

ANYBODY = -1
"""Processes of a store that is never thought to be complete, because cells come back."""


class _Meeting(Line):
    """A group of cells."""

    def add_at_first(self, tensor: Tensor) -> None:
        options = groups.ReduceOptions()
        options.rootRank = 0
        with self._named("cannot add up"):
            self._open.reduce([tensor], options).wait()


class Between:
    """What one rank of one cell shares with the same rank of the others."""

    def __init__(self, store: Path, *, cell: int, rank: int = 0, timeout_s: float) -> None:
        """Cells of one machine meet in a file; gradients pass through main memory."""
        self._store = groups.PrefixStore(f"rank{rank}", FileStore(str(store), ANYBODY))
        self._cell = cell
        self._timeout = timedelta(seconds=timeout_s)
        self._epoch = -1
        self._lines: dict[tuple[int, ...], _Meeting] = {}

    def meet(self, epoch: int, order: Sequence[int]) -> None:
        """Groups for every prefix of the order that this cell is in; all its cells call it."""
        self._begin(epoch)
        for size in range(2, len(order) + 1):
            if self._cell in order[:size]:
                self._line(tuple(order[:size]))

    def reduced(self, epoch: int, members: Sequence[int], sums: Sequence[Tensor]) -> list[Tensor]:
        """At the first member the sum over all; what others get is worth nothing."""
        scratch = [one.detach().to("cpu", copy=True) for one in sums]
        if len(members) > 1:
            line = self._entered(epoch, members)
            for one in scratch:
                line.add_at_first(one)
        return scratch

    def spread(self, epoch: int, members: Sequence[int], weights: Sequence[Tensor]) -> list[Tensor]:
        """The first member's weights, for each of them a copy in main memory.

        CellError where what arrives is not what was sent.
        """
        scratch = [one.detach().to("cpu", copy=True) for one in weights]
        if len(members) > 1:
            line = self._entered(epoch, members)
            sent = _hash(scratch)
            for one in scratch:
                line.spread(one)
            if not torch.equal(line.spread(sent), _hash(scratch)):
                raise CellError(f"cell {self._cell}: weights arrived with another hash than sent")
        return scratch

    def drop(self) -> None:
        """Whoever waits for this cell fails now and not by time-out."""
        for line in self._lines.values():
            line.drop()
        self._lines.clear()

    def _begin(self, epoch: int) -> None:
        if epoch < self._epoch:
            raise CellError(f"groups of epoch {epoch} are over: this is {self._epoch}")
        if epoch > self._epoch:
            self.drop()
            self._epoch = epoch

    def _entered(self, epoch: int, members: Sequence[int]) -> _Meeting:
        self._begin(epoch)
        return self._line(tuple(members))

    def _line(self, members: tuple[int, ...]) -> _Meeting:
        if self._cell not in members:
            raise CellError(f"cell {self._cell} is not among {list(members)}")
        found = self._lines.get(members)
        if found is None:
            name = f"epoch{self._epoch}/" + "-".join(map(str, members))
            rank, size = members.index(self._cell), len(members)

            def make() -> Any:
                store = groups.PrefixStore(name, self._store)
                return groups.ProcessGroupGloo(store, rank, size, self._timeout)

            found = self._lines[members] = _Meeting(f"group {name}", make, depth=1)
        return found


def _hash(tensors: Sequence[Tensor]) -> Tensor:
    """Sixteen bytes that tell these values from any others."""
    state = xxhash.xxh3_128()
    for one in tensors:
        state.update(one.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return torch.frombuffer(bytearray(state.digest()), dtype=torch.uint8)


def num_bytes(tensors: Sequence[Tensor]) -> int:
    return sum(one.nbytes for one in tensors)
