"""What one rank of a cell does for each command: the driver's own rank and its followers alike.

Rule 1: what comes from other cells is staged first, and committed once all ranks have theirs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import assert_never

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from gyre.cell.checkpoint import as_checkpoint_error, write_state
from gyre.cell.protocol import (
    BroadcastRequest,
    FormGroupsRequest,
    ReduceRequest,
    StepRequest,
)
from gyre.cell.ranks import protocol
from gyre.cell.ranks.protocol import RankCommand, RankReply
from gyre.cell.training_worker import check_version
from gyre.cell.weight_sync import Cuts, exposed, fetched
from gyre.model.checkpoint_store import Shard, describe_file
from gyre.model.weights import load_into
from gyre.trainer.distributed.cell_comm import CellComm, num_bytes
from gyre.trainer.distributed.pipeline import StreamEnd
from gyre.trainer.distributed.rank_comm import RankComm
from gyre.trainer.distributed.rank_trainer import RankTrainer
from gyre.trainer.offload import Snapshot
from gyre.types.errors import InternalError, ModelError
from gyre.types.protocols import TensorBundle, Transport


def write_shard(path: Path, tensors: Mapping[str, Tensor]) -> Shard:
    """The file is there, whole, under its name."""
    held = {name: one.detach().to("cpu").contiguous() for name, one in tensors.items()}
    part = path.with_name(f"{path.name}.part")
    try:
        save_file(held, part)
        part.rename(path)
        return describe_file(path)
    except (OSError, SafetensorError) as error:
        raise ModelError(f"{path}: cannot be written: {error}") from error


def read_shard(share: Path, given: Shard) -> dict[str, Tensor]:
    """What was laid there; ModelError if it is not what was described."""
    path = share / Path(given.file).name
    try:
        found = describe_file(path)
        if (found.num_bytes, found.xxh3) != (given.num_bytes, given.xxh3):
            expected = f"{given.num_bytes} bytes with hash {given.xxh3}"
            raise ModelError(
                f"{path}: expected {expected}, found {found.num_bytes} with {found.xxh3}"
            )
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise ModelError(f"{path}: expected weights: {error}") from error


@dataclass(frozen=True, slots=True)
class StagedGradients:
    """The sum of all members, which takes the place of this rank's."""

    total: Sequence[Tensor] | None
    """None on a cell that has sent its own to the first member, and keeps it."""

    def commit(self, trainer: RankTrainer) -> None:
        if self.total is not None:
            trainer.replace_gradients(self.total)


@dataclass(frozen=True, slots=True)
class StagedWeights:
    """Another cell's weights, in the parts that this rank holds; its sum is forgotten."""

    tensors: Mapping[str, Tensor] | None
    """None on the cell whose weights they are."""
    version: int

    def commit(self, trainer: RankTrainer) -> None:
        """Only satellites get weights, and have no optimizer."""
        if self.tensors is not None:
            load_into(trainer.network, self.tensors)
            trainer.version = self.version
            trainer.clear()


class RankWorker:
    """One rank: its trainer, its process groups within the cell and with other cells."""

    def __init__(
        self,
        trainer: RankTrainer,
        lines: RankComm,
        between: CellComm,
        transport: Transport,
        *,
        cuts: Cuts,
        share: Path,
        cell: int,
    ) -> None:
        """What it copies lies in the share of its machine; other cells have the transport."""
        self.trainer = trainer
        self.lines = lines
        self.snapshot = Snapshot(trainer)
        self._between = between
        self._transport = transport
        self._cuts = cuts
        self._share = share
        self._cell = cell
        self._rank = lines.place.rank
        self._staged: StagedGradients | StagedWeights | None = None
        self._exposed: TensorBundle | None = None

    def execute(self, order: RankCommand, number: int = protocol.READY) -> RankReply:
        """What came of it; GyreError is the caller's to answer."""
        answer = RankReply(number=number, version=self.trainer.version)
        match order:
            case protocol.ReloadCommand():
                with self.snapshot.changing():
                    self.trainer.reload()
            case protocol.OffloadCommand():
                with self.snapshot.changing():
                    self.trainer.offload(weights=True)
            case protocol.ClearCommand():
                self.trainer.clear()
            case protocol.StreamCommand():
                while self.trainer.follow() is not StreamEnd.CLOSED:
                    pass
            case StepRequest(version=version):
                check_version(self.trainer.version, version)
                with self.snapshot.changing():
                    answer.report = self.trainer.step()
            case protocol.ExposeCommand():
                answer.bundle = self._expose()
            case (
                protocol.CopyCommand()
                | protocol.WriteShardCommand()
                | protocol.WriteOptimizerCommand()
            ):
                with as_checkpoint_error():
                    self._save(order, answer)
            case FormGroupsRequest(epoch=epoch, order=cells):
                self._between.form_groups(epoch, cells)
            case protocol.CommitCommand():
                self.commit()
            case protocol.AbortCommand():
                self.abort()
            case _:
                answer.num_bytes = self._stage(order)
        return answer

    def commit(self) -> None:
        """What is staged takes the place of this rank's sum or weights."""
        if self._staged is None:
            raise InternalError(f"rank {self._rank}: nothing is staged")
        staged, self._staged = self._staged, None
        with self.snapshot.changing():
            staged.commit(self.trainer)

    def abort(self) -> None:
        """What is staged, if anything is, is dropped."""
        self._staged = None

    def drop(self) -> None:
        """A thread that waits in one of this rank's process groups fails now."""
        self.lines.drop()
        self._between.drop()
        self._transport.close()

    def _save(
        self,
        order: protocol.CopyCommand | protocol.WriteShardCommand | protocol.WriteOptimizerCommand,
        answer: RankReply,
    ) -> None:
        match order:
            case protocol.CopyCommand(version=version):
                self.snapshot.copy(version)
                answer.copied_s = self.snapshot.copied_s
            case protocol.WriteShardCommand():
                name = f"copied-{self._cell}.{self._rank}.safetensors"
                answer.part = write_shard(self._share / name, dict(self.snapshot.weights()))
            case protocol.WriteOptimizerCommand(folder=folder):
                state = self.snapshot.state()
                answer.num_steps = state.num_steps
                answer.files = write_state(Path(folder), self._rank, state)
            case _:
                assert_never(order)

    def _stage(self, order: ReduceRequest | BroadcastRequest | protocol.PullCommand) -> int:
        """What comes from other cells is staged; bytes that went to them."""
        match order:
            case ReduceRequest(epoch=epoch, members=members):
                total = self._between.reduced(epoch, members, self.trainer.gradients)
                is_first = members[0] == self._cell
                self._staged = StagedGradients(total if is_first else None)
                return 0 if is_first else num_bytes(total)
            case BroadcastRequest(epoch=epoch, members=members, version=version):
                named = sorted(self.trainer.network.module.named_parameters())
                found = self._between.broadcast_weights(epoch, members, [one for _, one in named])
                tensors = {name: one for (name, _), one in zip(named, found, strict=True)}
                own = members[0] == self._cell
                self._staged = StagedWeights(None if own else tensors, version)
            case protocol.PullCommand(given=given):
                tensors = fetched(self._transport, given.parts, self._cuts, version=given.version)
                self._staged = StagedWeights(tensors, given.version)
            case _:
                assert_never(order)
        return 0

    def _expose(self) -> TensorBundle:
        before, self._exposed = self._exposed, None
        if before is not None:
            self._transport.withdraw(before.exposure)
        tensors = dict(self.trainer.network.module.named_parameters())
        version = self.trainer.version
        self._exposed = exposed(self._transport, tensors, self._cuts, version=version)
        return self._exposed
