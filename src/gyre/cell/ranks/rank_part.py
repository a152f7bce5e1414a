"""What one rank of a cell does of every order: driver and followers alike.

Rule 1: what comes from other cells is laid aside first, and taken once all ranks have theirs.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import assert_never

from torch import Tensor

from gyre.cell.cell_weights import Cuts, exposed, fetched
from gyre.cell.ranks import protocol as rank_orders
from gyre.cell.ranks.protocol import Answer, Order
from gyre.cell.ranks.rank_weights import laid
from gyre.cell.saving import as_checkpoint_error
from gyre.cell.state_files import write_state
from gyre.model.weights import load_into
from gyre.trainer.distributed.cell_comm import Between, num_bytes
from gyre.trainer.distributed.pipeline import Ended
from gyre.trainer.distributed.rank import RankTrainer
from gyre.trainer.distributed.rank_comm import Lines
from gyre.trainer.snapshot import Snapshot
from gyre.types.errors import BrokenPromise
from gyre.types.ports import Transport
from gyre.types.reports import StepReport
from gyre.types.transfers import Bundle


class Part:
    """One rank: its trainer, its lines within the cell, its ways to its like in others."""

    def __init__(
        self,
        trainer: RankTrainer,
        lines: Lines,
        between: Between,
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
        self._exposed: Bundle | None = None

    def obey(self, order: Order, number: int = rank_orders.READY) -> Answer:
        """What came of it; GyreError is the caller's to answer."""
        answer = Answer(number=number, version=self.trainer.version)
        match order:
            case rank_orders.Restore():
                with self.snapshot.changing():
                    self.trainer.restore()
            case rank_orders.Rest():
                with self.snapshot.changing():
                    self.trainer.rest(weights=True)
            case rank_orders.Clear():
                self.trainer.clear()
            case rank_orders.Stream():
                while self.trainer.follow() is not Ended.CLOSED:
                    pass
            case rank_orders.Step():
                with self.snapshot.changing():
                    self.stepped = self.trainer.step()
            case rank_orders.Expose():
                answer.bundle = self._expose()
            case rank_orders.Copy() | rank_orders.Lay() | rank_orders.Keep():
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
        self, order: rank_orders.Copy | rank_orders.Lay | rank_orders.Keep, answer: Answer
    ) -> None:
        match order:
            case rank_orders.Copy(version=version):
                self.snapshot.copy(version)
                answer.copied_s = self.snapshot.copied_s
            case rank_orders.Lay():
                name = f"copied-{self._cell}.{self._rank}.safetensors"
                answer.part = laid(self._share / name, dict(self.snapshot.weights()))
            case rank_orders.Keep(folder=folder):
                state = self.snapshot.state()
                answer.num_steps = state.num_steps
                answer.files = write_state(Path(folder), self._rank, state)
            case _:
                assert_never(order)

    def _obey_among_cells(
        self,
        order: rank_orders.Meet
        | rank_orders.Reduce
        | rank_orders.Spread
        | rank_orders.Pull
        | rank_orders.Take
        | rank_orders.Forget,
    ) -> int:
        match order:
            case rank_orders.Meet(epoch=epoch, order=cells):
                self._between.meet(epoch, cells)
            case rank_orders.Reduce():
                return self._reduce(order)
            case rank_orders.Spread(version=version):
                self._spread(order, version)
            case rank_orders.Pull(parts=parts, version=version):
                tensors = fetched(self._transport, parts, self._cuts, version=version)
                self._lay_aside(tensors, version)
            case rank_orders.Take():
                if self._aside is None:
                    raise BrokenPromise(f"rank {self._rank}: nothing was laid aside")
                aside, self._aside = self._aside, None
                with self.snapshot.changing():
                    aside()
            case rank_orders.Forget():
                self._aside = None
            case _:
                assert_never(order)
        return 0

    def _reduce(self, order: rank_orders.Reduce) -> int:
        total = self._between.reduced(order.epoch, order.members, self.trainer.gradients)
        if order.members[0] == self._cell:
            self._aside = lambda: self.trainer.replace_gradients(total)
            return 0
        self._aside = _nothing
        return num_bytes(total)

    def _spread(self, order: rank_orders.Spread, version: int) -> None:
        named = sorted(self.trainer.network.module.named_parameters())
        found = self._between.spread(order.epoch, order.members, [one for _, one in named])
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

    def _expose(self) -> Bundle:
        before, self._exposed = self._exposed, None
        if before is not None:
            self._transport.withdraw(before.exposure)
        tensors = dict(self.trainer.network.module.named_parameters())
        version = self.trainer.version
        self._exposed = exposed(self._transport, tensors, self._cuts, version=version)
        return self._exposed


def _nothing() -> None:
    """There is nothing to take, and that is all right."""
