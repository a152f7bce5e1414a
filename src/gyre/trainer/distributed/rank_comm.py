"""Messages between the ranks of one cell, and the error when one of them does not answer.

Rule 1: a send never waits for its receiver unless `depth` sends before it are still under way.
Rule 2: activations, gradients and control each have groups of their own, because NCCL runs what
two ranks exchange within one group in order, whichever way it goes.
Rule 3: a rank that fails drops its lines, so that its peers fail at once and not by time-out.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.distributed import distributed_c10d as groups

from gyre.types.errors import CellError, InternalError


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPosition:
    """Where a rank stands in its cell: a stage of the pipeline, and a shard of that stage."""

    stage: int
    stages: int
    shard: int
    shards: int

    def __post_init__(self) -> None:
        if not (0 <= self.stage < self.stages and 0 <= self.shard < self.shards):
            message = f"there is no such place in a cell: {self}"
            raise InternalError(message)

    @classmethod
    def of(cls, rank: int, *, stages: int, shards: int) -> "RankPosition":
        """Ranks of one stage are neighbours, because they exchange most."""
        stage, shard = divmod(rank, shards)
        return cls(stage=stage, stages=stages, shard=shard, shards=shards)

    @property
    def rank(self) -> int:
        return self.stage * self.shards + self.shard

    @property
    def size(self) -> int:
        return self.stages * self.shards

    @property
    def reporter(self) -> int:
        """The rank that says what a micro-step came to: shard 0 of the last stage."""
        return (self.stages - 1) * self.shards

    @property
    def is_driver(self) -> bool:
        """Whether it decides what the cell computes."""
        return self.rank == 0

    @property
    def is_first(self) -> bool:
        return self.stage == 0

    @property
    def is_last(self) -> bool:
        return self.stage == self.stages - 1


def depth(stages: int) -> int:
    """Sends of one kind that may be under way at once.

    One more than the micro-steps a pipeline holds; test_schedule shows that no rank waits for ever.
    """
    return stages + 1


class CommGroup:
    """One group of ranks; any failure to reach one of them is a CellError that names the group."""

    def __init__(self, name: str, make: Callable[[], Any], *, depth: int) -> None:
        self._name = name
        self._depth = depth
        self._under_way: deque[tuple[Any, Tensor]] = deque()
        self._group: Any = None
        with self._named("is not there"):
            self._group = make()

    def send(self, tensor: Tensor, to: int) -> None:
        """On its way; the tensor must not change any more."""
        tensor = tensor.detach().contiguous()
        with self._named(f"cannot send to rank {to}"):
            self._under_way.append((self._open.send([tensor], to, 0), tensor))
        while len(self._under_way) > self._depth:
            self._finish()

    def receive(self, into: Tensor, sender: int) -> Tensor:
        """`into`, filled with what that rank sent first of what has not been received."""
        with self._named(f"hears nothing from rank {sender}"):
            self._open.recv([into], sender, 0).wait()
        return into

    def settle(self) -> None:
        """Everything sent has been received."""
        while self._under_way:
            self._finish()

    def add_up(self, tensor: Tensor) -> Tensor:
        """`tensor`, now the sum over all ranks, with the same bits on each."""
        with self._named("cannot add up"):
            self._open.allreduce([tensor]).wait()
        return tensor

    def broadcast(self, tensor: Tensor) -> Tensor:
        """`tensor`, now rank 0's on every rank."""
        with self._named("cannot spread"):
            self._open.broadcast(tensor, 0).wait()
        return tensor

    def gather(self, tensor: Tensor, size: int) -> list[Tensor]:
        """What every rank gave, in the order of ranks; equal shapes."""
        tensor = tensor.detach().contiguous()
        parts = [torch.empty_like(tensor) for _ in range(size)]
        with self._named("cannot gather"):
            self._open.allgather([parts], [tensor]).wait()
        return parts

    def drop(self) -> None:
        """Peers that wait for us fail now; later requests to this group fail too."""
        self._under_way.clear()
        self._group = None

    @property
    def _open(self) -> Any:
        if self._group is None:
            message = f"{self._name} was dropped after an earlier failure"
            raise CellError(message)
        return self._group

    def _finish(self) -> None:
        work, _ = self._under_way.popleft()
        with self._named("has sent what nobody received"):
            work.wait()

    @contextmanager
    def _named(self, failure: str) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            message = f"{self._name} {failure}: {str(error).splitlines()[0]}"
            raise CellError(message) from error


class RankComm:
    """All groups of one rank; a failure in one of them is a failure of the cell."""

    def __init__(
        self,
        store: groups.Store,
        place: RankPosition,
        *,
        device: torch.device,
        timeout_s: float,
        epoch: int = 0,
    ) -> None:
        """Ranks of a cell meet at one store; a new epoch finds none of an older one's traces."""
        self.place = place
        store = groups.PrefixStore(f"epoch{epoch}", store)
        host = torch.device("cpu")

        def line(name: str, on: torch.device, rank: int, size: int, most: int) -> CommGroup:
            def make() -> Any:
                return _group(groups.PrefixStore(name, store), rank, size, on, timeout_s)

            where = f"line {name} of stage {place.stage}, shard {place.shard}"
            return CommGroup(where, make, depth=most)

        shard, stage, most = place.shard, place.stage, depth(place.stages)
        # A micro-step is two messages to each of the other ranks.
        self.control = line("control", host, place.rank, place.size, 2 * most * place.size)
        """Headers, packs and results, on the host; its ranks are those of the cell."""
        self.ahead = line(f"ahead{shard}", device, stage, place.stages, most)
        """Activations; its ranks are stages."""
        self.back = line(f"back{shard}", device, stage, place.stages, most)
        """Gradients of activations; its ranks are stages."""
        self.within = line(f"within{stage}", device, shard, place.shards, most)
        """Sums of shards; its ranks are shards of one stage."""

    @property
    def _all(self) -> Sequence[CommGroup]:
        return (self.control, self.ahead, self.back, self.within)

    def settle(self) -> None:
        """Everything this rank sent has been received."""
        for line in self._all:
            line.settle()

    def drop(self) -> None:
        for line in self._all:
            line.drop()

    @contextmanager
    def dropped_on_failure(self) -> Iterator[None]:
        """An error or cancellation that ends the block early leaves no peer waiting."""
        succeeded = False
        try:
            yield
            succeeded = True
        finally:
            if not succeeded:
                self.drop()


def _group(
    store: groups.Store, rank: int, size: int, device: torch.device, timeout_s: float
) -> ProcessGroup:
    """A group of its own, in no registry, so that dropping it closes its connections."""
    timeout = timedelta(seconds=timeout_s)
    kind: Any = groups.ProcessGroupNCCL if device.type == "cuda" else groups.ProcessGroupGloo
    return kind(store, rank, size, timeout)  # type: ignore[no-any-return]
