"""The TrainingWorker protocol, which a cell's API calls, and the worker of a cell of one rank.

Rule 1: a sum that does not consist of exactly the leases it should is sent nowhere (SPEC 3.2).
Rule 2: an error leaves the sum and the weights as they were.
"""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from torch import Tensor

from gyre.cell.checkpoint import CheckpointWriter, SingleRankCopies
from gyre.cell.protocol import ExposedWeights, SavedCheckpoint
from gyre.cell.weight_sync import WeightPublisher
from gyre.model.cuda_ipc import IpcMemory
from gyre.trainer.distributed.cell_comm import CellComm, num_bytes
from gyre.trainer.offload import Snapshot, oom_guard, synchronize
from gyre.trainer.protocol import CellTrainer
from gyre.types.errors import CellError
from gyre.types.protocols import Transport
from gyre.types.training import Claim, ClaimReport, Score, StepReport

Leases = Mapping[int, Collection[int]]
"""By cell, what its sum must consist of."""


class TrainingWorker(Protocol):
    """The training half of a cell, for any number of ranks, as the cell's API calls it.

    Methods may be called from as many threads as it takes claims at once, and one more; `expose`,
    `save` and `checkpoint` from any beside them.
    """

    @property
    def version(self) -> int: ...

    @property
    def claims_at_once(self) -> int:
        """Claims that it works on together."""
        ...

    @property
    def shares_network(self) -> bool:
        """Whether the engine's weights are its own."""
        ...

    @property
    def failure(self) -> CellError | None:
        """What the cell was lost by, so that it can do nothing any more."""
        ...

    def reload(self) -> None:
        """The trainer has its memory, and the network its weights, in place of the engine's."""
        ...

    def offload(self) -> None:
        """Its memory is free; a sum that holds anything is kept (SPEC 2.5)."""
        ...

    def clear(self) -> None:
        """The sum is empty, and so are its leases."""
        ...

    def score(self, claim: Claim) -> tuple[Score, ...]:
        """Per share, by forward passes alone (SPEC 8.3)."""
        ...

    def train(
        self, claim: Claim, *, lease: int, num_executions: int, scores: Sequence[Score] | None
    ) -> ClaimReport:
        """The claim is in the sum once, under its lease, or not at all."""
        ...

    def form_groups(self, epoch: int, order: Sequence[int]) -> None:
        """Process groups with the cells of an epoch; all of them call it."""
        ...

    def reduce(self, epoch: int, members: Sequence[int], leases: Leases) -> int:
        """The first member's sum is that of all; bytes that this cell sent there."""
        ...

    def step(self, version: int) -> StepReport:
        """One update from this version, and from no other."""
        ...

    def broadcast_weights(self, epoch: int, members: Sequence[int], version: int) -> None:
        """Every member has the first member's weights, which are of this version."""
        ...

    def expose(self) -> ExposedWeights:
        """The weights as they are, for other cells to read until the next version is exposed."""
        ...

    def pull(self, given: ExposedWeights) -> None:
        """The weights are those of another cell, and no others (SPEC 3.1)."""
        ...

    def save(self, folder: Path, version: int | None) -> SavedCheckpoint:
        """The weights are durable: of this version, or of whichever it has."""
        ...

    def checkpoint(self, folder: Path, version: int | None) -> SavedCheckpoint:
        """Weights and optimizer are durable; the copy is made beside the thread that trains."""
        ...

    def drop(self) -> None:
        """No call waits for this cell any more."""
        ...


class SingleRankWorker:
    """The training half of a cell of one rank: a trainer, its accumulated leases, its peers."""

    claims_at_once = 1
    shares_network = True
    failure = None

    def __init__(
        self,
        trainer: CellTrainer,
        between: CellComm,
        *,
        transport: Transport,
        cell: int,
        memory: IpcMemory | None = None,
    ) -> None:
        """Weights go to other cells by the transport, or by memory that all of them can lend."""
        self._trainer = trainer
        self._between = between
        self._cell = cell
        self._held: set[int] = set()
        self._shown = WeightPublisher(trainer, transport, memory)
        self._snapshot = Snapshot(trainer)
        self._saving = CheckpointWriter(SingleRankCopies(self._snapshot), trainer.network)

    @property
    def version(self) -> int:
        return self._trainer.version

    def reload(self) -> None:
        with self._snapshot.changing():
            self._trainer.reload()
            self._trainer.rewrite()
            # Copies run behind the host, and what this took is what a transition says it took.
            synchronize()
        self._shown.reload()

    def offload(self) -> None:
        self._shown.offload()
        with self._snapshot.changing():
            self._trainer.offload()

    def clear(self) -> None:
        self._trainer.clear()
        self._held.clear()

    def score(self, claim: Claim) -> tuple[Score, ...]:
        return self._trainer.score(claim)

    def train(
        self, claim: Claim, *, lease: int, num_executions: int, scores: Sequence[Score] | None
    ) -> ClaimReport:
        if lease in self._held:
            raise CellError(f"lease {lease} is in the sum already", retryable=False)
        report = self._trainer.train(claim, num_executions=num_executions, scores=scores)
        self._held.add(lease)
        return report

    def form_groups(self, epoch: int, order: Sequence[int]) -> None:
        self._between.form_groups(epoch, order)

    def reduce(self, epoch: int, members: Sequence[int], leases: Leases) -> int:
        check_held(self._cell, self._held, leases)
        sums = self._trainer.gradients
        total = self._between.reduced(epoch, members, sums)
        if members[0] != self._cell:
            return num_bytes(total)
        self._trainer.replace_gradients(total)
        self._held = {lease for held in leases.values() for lease in held}
        return 0

    def step(self, version: int) -> StepReport:
        check_version(self._trainer.version, version)
        with self._snapshot.changing():
            report = self._trainer.step()
        self._shown.changed()
        self._held.clear()
        return report

    def broadcast_weights(self, epoch: int, members: Sequence[int], version: int) -> None:
        named = sorted(self._trainer.network.module.named_parameters())
        found = self._between.broadcast_weights(epoch, members, [one for _, one in named])
        if members[0] != self._cell:
            tensors = {name: one for (name, _), one in zip(named, found, strict=True)}
            self._load(tensors, version)

    def expose(self) -> ExposedWeights:
        """In a copy; they are fixed while a batch is trained (SPEC 3.1)."""
        return self._shown.expose()

    def pull(self, given: ExposedWeights) -> None:
        self._load(oom_guard("taking weights", lambda: self._shown.taken(given)), given.version)

    def save(self, folder: Path, version: int | None) -> SavedCheckpoint:
        return self._saving.save(folder, self.version if version is None else version)

    def checkpoint(self, folder: Path, version: int | None) -> SavedCheckpoint:
        return self._saving.checkpoint(folder, self.version if version is None else version)

    def drop(self) -> None:
        self._between.drop()

    def _load(self, tensors: Mapping[str, Tensor], version: int) -> None:
        with self._snapshot.changing():
            self._trainer.load_weights(tensors, version=version)
        self._shown.changed()
        self.clear()


def check_held(cell: int, held: set[int], leases: Leases) -> None:
    """The cell's sum is of its leases, no more and no fewer."""
    mine = set(leases.get(cell, ()))
    if mine != held:
        odd = sorted(mine ^ held)
        raise CellError(f"the sum of cell {cell} is not of its leases: {odd} differ")


def check_version(found: int, wanted: int) -> None:
    if found != wanted:
        message = f"a step from version {wanted}: the trainer has version {found}"
        raise CellError(message, retryable=False)
