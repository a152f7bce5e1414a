"""Sums the gradients of cells at the first of them, and broadcasts its weights, rank by rank.

Rule 1: a group is a prefix of an order of cells; an epoch has one order, a failure begins another.
Rule 2: no member's own sum or weights change: a reduction in main memory overwrites what its
senders hold, so scratch copies travel, and lent memory is only read (SPEC 3.3).
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import torch
import xxhash
from torch import Tensor
from torch.distributed import FileStore  # type: ignore[attr-defined]
from torch.distributed import distributed_c10d as groups

from gyre.model.cuda_ipc import IpcExport, IpcMemory, read, require_alike
from gyre.trainer.distributed.rank_comm import CommGroup
from gyre.trainer.offload import oom_guard
from gyre.types.errors import CellError
from gyre.types.protocols import IpcHandle

ANYBODY = -1
"""Processes of a store that is never thought to be complete, because cells come back."""


class _Meeting(CommGroup):
    """A group of cells."""

    def add_at_first(self, tensor: Tensor) -> None:
        options = groups.ReduceOptions()
        options.rootRank = 0
        with self._named("cannot add up"):
            self._open.reduce([tensor], options).wait()

    def gather_words(self, words: bytes, size: int) -> list[bytes]:
        """What every member said."""
        lengths = [int(one) for one in self.gather(torch.tensor([len(words)]), size)]
        said = torch.zeros(max(lengths), dtype=torch.uint8)
        said[: len(words)] = torch.frombuffer(bytearray(words), dtype=torch.uint8)
        found = self.gather(said, size)
        return [bytes(one[:n].numpy()) for one, n in zip(found, lengths, strict=True)]

    def all_here(self) -> None:
        """Every member has come this far."""
        self.add_up(torch.zeros(1))


class CellComm:
    """Reduces gradients and broadcasts weights between a rank and its peers in other cells."""

    def __init__(
        self,
        store: Path,
        *,
        cell: int,
        rank: int = 0,
        timeout_s: float,
        memory: IpcMemory | None = None,
    ) -> None:
        """Cells of one machine meet in a file.

        Tensors pass through main memory, or are read where they lie in memory that all can lend.
        """
        self._memory = memory
        self._store = groups.PrefixStore(f"rank{rank}", FileStore(str(store), ANYBODY))
        self._cell = cell
        self._timeout = timedelta(seconds=timeout_s)
        self._epoch = -1
        self._lines: dict[tuple[int, ...], _Meeting] = {}

    def form_groups(self, epoch: int, order: Sequence[int]) -> None:
        """Groups for every prefix of the order that this cell is in; all its cells call it."""
        self._begin(epoch)
        for size in range(2, len(order) + 1):
            if self._cell in order[:size]:
                self._line(tuple(order[:size]))

    def reduced(self, epoch: int, members: Sequence[int], sums: Sequence[Tensor]) -> list[Tensor]:
        """At the first member the sum over all; what others get is worth nothing."""
        if self._memory is not None:
            return self._reduced_there(self._memory, epoch, members, sums)
        scratch = [one.detach().to("cpu", copy=True) for one in sums]
        if len(members) > 1:
            line = self._entered(epoch, members)
            for one in scratch:
                line.add_at_first(one)
        return scratch

    def broadcast_weights(
        self, epoch: int, members: Sequence[int], weights: Sequence[Tensor]
    ) -> list[Tensor]:
        """The first member's weights, for each of them a copy.

        CellError where what arrives is not what was sent.
        """
        if self._memory is not None:
            return self._spread_there(self._memory, epoch, members, weights)
        scratch = [one.detach().to("cpu", copy=True) for one in weights]
        if len(members) > 1:
            line = self._entered(epoch, members)
            sent = _hash(scratch)
            for one in scratch:
                line.broadcast(one)
            if not torch.equal(line.broadcast(sent), _hash(scratch)):
                raise CellError(f"cell {self._cell}: weights arrived with another hash than sent")
        return scratch

    def _reduced_there(
        self, memory: IpcMemory, epoch: int, members: Sequence[int], sums: Sequence[Tensor]
    ) -> list[Tensor]:
        """The first reads the others' sums where they lie, in the order of members."""
        if len(members) < 2:
            return list(sums)
        is_first = self._cell == members[0]
        line = self._entered(epoch, members)
        # No member makes a copy of these that could be compared.
        with _lending(memory, line, [] if is_first else sums, with_sums=False) as loan:
            _, *others = line.gather_words(_said(loan), len(members))
            total = list(sums)
            if is_first:
                total = oom_guard("adding up gradients", lambda: _sum(memory, sums, others))
            line.all_here()
        return total

    def _spread_there(
        self, memory: IpcMemory, epoch: int, members: Sequence[int], weights: Sequence[Tensor]
    ) -> list[Tensor]:
        """The others read the first's weights where they lie."""
        found = [one.detach() for one in weights]
        if len(members) < 2:
            return found
        is_first = self._cell == members[0]
        line = self._entered(epoch, members)
        with _lending(memory, line, found if is_first else []) as loan:
            first, *_ = line.gather_words(_said(loan), len(members))
            if not is_first:
                found = oom_guard("taking weights", lambda: _copies(memory, first, weights))
            line.all_here()
        return found

    def drop(self) -> None:
        """Cells that wait for this one fail now and not by time-out."""
        # Taken out first, because the thread that drives a cell and the one that ends it both call.
        lines, self._lines = self._lines, {}
        for line in lines.values():
            line.drop()

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


@contextmanager
def _lending(
    memory: IpcMemory, line: CommGroup, tensors: Sequence[Tensor], *, with_sums: bool = True
) -> Iterator[IpcExport]:
    """Members can read these until the block ends; one that fails leaves none waiting."""
    loan = None
    is_done = False
    try:
        loan = memory.lend(tensors, with_sums=with_sums)
        yield loan
        is_done = True
    finally:
        if not is_done:
            line.drop()
        # After that, because it waits for who is reading.
        if loan is not None:
            loan.end()


def _said(loan: IpcExport) -> bytes:
    return msgspec.json.encode(loan.lent)


def _sum(memory: IpcMemory, sums: Sequence[Tensor], others: Sequence[bytes]) -> list[Tensor]:
    """These and all that others lend, in new memory."""
    total = [one.detach().clone() for one in sums]
    for said in others:
        lent = msgspec.json.decode(said, type=IpcHandle)
        require_alike(lent, total)
        with memory.borrowed(lent) as parts:
            for one, part in zip(total, parts, strict=True):
                one.add_(part.view(one.dtype))
    return total


def _copies(memory: IpcMemory, said: bytes, like: Sequence[Tensor]) -> list[Tensor]:
    """What is lent, in new memory."""
    found = [torch.empty_like(one) for one in like]
    read(memory, msgspec.json.decode(said, type=IpcHandle), found)
    return found


def _hash(tensors: Sequence[Tensor]) -> Tensor:
    """Sixteen bytes that tell these values from any others."""
    state = xxhash.xxh3_128()
    for one in tensors:
        state.update(one.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return torch.frombuffer(bytearray(state.digest()), dtype=torch.uint8)


def num_bytes(tensors: Sequence[Tensor]) -> int:
    return sum(one.nbytes for one in tensors)
