"""What one rank does for each command of the driver.

What one rank of a cell does of every order: driver and followers alike.

Rule 1: what comes from other cells is laid aside first, and taken once all ranks have theirs.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import assert_never

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from gyre.cell.checkpoint_writer import as_checkpoint_error, write_state
from gyre.cell.ranks import protocol
from gyre.cell.ranks.protocol import RankCommand, RankReply
from gyre.cell.weight_sync import Cuts, exposed, fetched
from gyre.model.manifest import Shard, describe_file
from gyre.model.weights import load_into
from gyre.trainer.distributed.cell_comm import CellComm, num_bytes
from gyre.trainer.distributed.pipeline import StreamEnd
from gyre.trainer.distributed.rank_comm import RankComm
from gyre.trainer.distributed.rank_trainer import RankTrainer
from gyre.trainer.snapshot import Snapshot
from gyre.types.errors import InternalError, ModelError
from gyre.types.protocols import TensorBundle, Transport
from gyre.types.training import StepReport


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
        self.stepped: StepReport | None = None
        """What the last step came to."""
        self._between = between
        self._transport = transport
        self._cuts = cuts
        self._share = share
        self._cell = cell
        self._rank = lines.place.rank
        self._aside: Callable[[], None] | None = None
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
            case protocol.StepCommand():
                with self.snapshot.changing():
                    self.stepped = self.trainer.step()
            case protocol.ExposeCommand():
                answer.bundle = self._expose()
            case (
                protocol.CopyCommand()
                | protocol.WriteShardCommand()
                | protocol.WriteOptimizerCommand()
            ):
                with as_checkpoint_error():
                    self._obey_beside(order, answer)
            case _:
                answer.num_bytes = self._obey_among_cells(order)
        return answer

    def drop(self) -> None:
        """A thread that waits in one of this rank's process groups fails now."""
        self.lines.drop()
        self._between.drop()
        self._transport.close()

    def _obey_beside(
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

    def _obey_among_cells(
        self,
        order: protocol.FormGroupsCommand
        | protocol.ReduceCommand
        | protocol.BroadcastCommand
        | protocol.PullCommand
        | protocol.CommitCommand
        | protocol.AbortCommand,
    ) -> int:
        match order:
            case protocol.FormGroupsCommand(epoch=epoch, order=cells):
                self._between.form_groups(epoch, cells)
            case protocol.ReduceCommand():
                return self._reduce(order)
            case protocol.BroadcastCommand(version=version):
                self._spread(order, version)
            case protocol.PullCommand(parts=parts, version=version):
                tensors = fetched(self._transport, parts, self._cuts, version=version)
                self._lay_aside(tensors, version)
            case protocol.CommitCommand():
                if self._aside is None:
                    raise InternalError(f"rank {self._rank}: nothing was laid aside")
                aside, self._aside = self._aside, None
                with self.snapshot.changing():
                    aside()
            case protocol.AbortCommand():
                self._aside = None
            case _:
                assert_never(order)
        return 0

    def _reduce(self, order: protocol.ReduceCommand) -> int:
        total = self._between.reduced(order.epoch, order.members, self.trainer.gradients)
        if order.members[0] == self._cell:
            self._aside = lambda: self.trainer.replace_gradients(total)
            return 0
        self._aside = _nothing
        return num_bytes(total)

    def _spread(self, order: protocol.BroadcastCommand, version: int) -> None:
        named = sorted(self.trainer.network.module.named_parameters())
        found = self._between.broadcast_weights(
            order.epoch, order.members, [one for _, one in named]
        )
        if order.members[0] == self._cell:
            self._aside = _nothing
        else:
            tensors = {name: one for (name, _), one in zip(named, found, strict=True)}
            self._lay_aside(tensors, version)

    def _lay_aside(self, tensors: Mapping[str, Tensor], version: int) -> None:
        """Parts as this rank holds them; only satellites get weights, and have no optimizer."""

        def take() -> None:
            load_into(self.trainer.network, tensors)
            self.trainer.version = version
            self.trainer.clear()

        self._aside = take

    def _expose(self) -> TensorBundle:
        before, self._exposed = self._exposed, None
        if before is not None:
            self._transport.withdraw(before.exposure)
        tensors = dict(self.trainer.network.module.named_parameters())
        version = self.trainer.version
        self._exposed = exposed(self._transport, tensors, self._cuts, version=version)
        return self._exposed


def _nothing() -> None:
    """There is nothing to take, and that is all right."""
