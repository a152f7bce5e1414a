"""What one rank of a cell does of every order: driver and followers alike.

Rule 1: what comes from other cells is laid aside first, and taken once all ranks have theirs.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import assert_never

from torch import Tensor

from gyre.cell.cell_weights import Cuts, exposed, fetched
from gyre.cell.ranks import protocol as rank_orders
from gyre.cell.ranks.protocol import RankCommand, RankReply
from gyre.cell.ranks.rank_weights import write_shard
from gyre.cell.saving import as_checkpoint_error
from gyre.cell.state_files import write_state
from gyre.model.weights import load_into
from gyre.trainer.distributed.cell_comm import CellComm, num_bytes
from gyre.trainer.distributed.pipeline import StreamEnd
from gyre.trainer.distributed.rank import RankTrainer
from gyre.trainer.distributed.rank_comm import RankComm
from gyre.trainer.snapshot import Snapshot
from gyre.types.errors import InternalError
from gyre.types.ports import Transport
from gyre.types.reports import StepReport
from gyre.types.transfers import TensorBundle


class RankWorker:
    """One rank: its trainer, its lines within the cell, its ways to its like in others."""

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

    def execute(self, order: RankCommand, number: int = rank_orders.READY) -> RankReply:
        """What came of it; GyreError is the caller's to answer."""
        answer = RankReply(number=number, version=self.trainer.version)
        match order:
            case rank_orders.ReloadCommand():
                with self.snapshot.changing():
                    self.trainer.reload()
            case rank_orders.OffloadCommand():
                with self.snapshot.changing():
                    self.trainer.offload(weights=True)
            case rank_orders.ClearCommand():
                self.trainer.clear()
            case rank_orders.StreamCommand():
                while self.trainer.follow() is not StreamEnd.CLOSED:
                    pass
            case rank_orders.StepCommand():
                with self.snapshot.changing():
                    self.stepped = self.trainer.step()
            case rank_orders.ExposeCommand():
                answer.bundle = self._expose()
            case (
                rank_orders.CopyCommand()
                | rank_orders.WriteShardCommand()
                | rank_orders.WriteOptimizerCommand()
            ):
                with as_checkpoint_error():
                    self._obey_beside(order, answer)
            case _:
                answer.num_bytes = self._obey_among_cells(order)
        return answer

    def drop(self) -> None:
        """Whoever waits for this rank fails now."""
        self.lines.drop()
        self._between.drop()
        self._transport.close()

    def _obey_beside(
        self,
        order: rank_orders.CopyCommand
        | rank_orders.WriteShardCommand
        | rank_orders.WriteOptimizerCommand,
        answer: RankReply,
    ) -> None:
        match order:
            case rank_orders.CopyCommand(version=version):
                self.snapshot.copy(version)
                answer.copied_s = self.snapshot.copied_s
            case rank_orders.WriteShardCommand():
                name = f"copied-{self._cell}.{self._rank}.safetensors"
                answer.part = write_shard(self._share / name, dict(self.snapshot.weights()))
            case rank_orders.WriteOptimizerCommand(folder=folder):
                state = self.snapshot.state()
                answer.num_steps = state.num_steps
                answer.files = write_state(Path(folder), self._rank, state)
            case _:
                assert_never(order)

    def _obey_among_cells(
        self,
        order: rank_orders.FormGroupsCommand
        | rank_orders.ReduceCommand
        | rank_orders.BroadcastCommand
        | rank_orders.PullCommand
        | rank_orders.CommitCommand
        | rank_orders.AbortCommand,
    ) -> int:
        match order:
            case rank_orders.FormGroupsCommand(epoch=epoch, order=cells):
                self._between.form_groups(epoch, cells)
            case rank_orders.ReduceCommand():
                return self._reduce(order)
            case rank_orders.BroadcastCommand(version=version):
                self._spread(order, version)
            case rank_orders.PullCommand(parts=parts, version=version):
                tensors = fetched(self._transport, parts, self._cuts, version=version)
                self._lay_aside(tensors, version)
            case rank_orders.CommitCommand():
                if self._aside is None:
                    raise InternalError(f"rank {self._rank}: nothing was laid aside")
                aside, self._aside = self._aside, None
                with self.snapshot.changing():
                    aside()
            case rank_orders.AbortCommand():
                self._aside = None
            case _:
                assert_never(order)
        return 0

    def _reduce(self, order: rank_orders.ReduceCommand) -> int:
        total = self._between.reduced(order.epoch, order.members, self.trainer.gradients)
        if order.members[0] == self._cell:
            self._aside = lambda: self.trainer.replace_gradients(total)
            return 0
        self._aside = _nothing
        return num_bytes(total)

    def _spread(self, order: rank_orders.BroadcastCommand, version: int) -> None:
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
