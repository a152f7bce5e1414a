"""The trainer of one rank of a cell: its part of the network, the gradient and the optimizer."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from math import isfinite
from time import perf_counter

import torch
from torch import Tensor

from gyre.model.network import Network
from gyre.train.gradients import GradientSums
from gyre.train.holdings import Holdings
from gyre.train.lines import Lines
from gyre.train.optimizer import Adam
from gyre.train.parallel import split_network
from gyre.train.pipeline import Ended, Pipeline, Source
from gyre.train.room import with_room
from gyre.train.stages import Stage
from gyre.words.errors import CellError, NotFinite
from gyre.words.reports import StepReport
from gyre.words.sections import ObjectiveSection, OptimizerSection, TrainerSection


class RankTrainer:
    """All ranks of a cell call the same methods in the same order; the driver alone drives.

    Rule 1: an error in a batch leaves its sum useless; `clear` it, and its work returns.
    Rule 2: every rank takes the same step or none does, because all know the same norm.
    """

    def __init__(
        self,
        network: Network,
        lines: Lines,
        *,
        section: TrainerSection,
        objective: ObjectiveSection,
        optimizer: OptimizerSection | None,
        temperature: float = 1.0,
        version: int = 0,
    ) -> None:
        """The network, whole when it comes, is cut down to this rank's part.

        Without an optimizer it is a satellite's: it sums, and the core steps (SPEC 3.1).
        """
        place = lines.place
        self.version = version
        self.network = network
        self._section = section
        split = split_network(network, lines.within, shard=place.shard, shards=place.shards)
        stage = Stage(network, place, section, temperature=temperature)
        parameters = dict(network.module.named_parameters())
        self._pipeline = Pipeline(stage, lines, objective)
        self._holdings = Holdings(stage, split, lines)
        self._sums = GradientSums(parameters)
        self._adam = None if optimizer is None else Adam(parameters, optimizer)

    def drive(self, source: Source) -> Ended:
        """As `Pipeline.drive`: the gradients of what was closed are in the ranks' sums."""
        with self._arithmetic():
            return with_room("a micro-step", lambda: self._pipeline.drive(source))

    def follow(self) -> Ended:
        """As `Pipeline.follow`."""
        with self._arithmetic():
            return with_room("a micro-step", self._pipeline.follow)

    def step(self) -> StepReport:
        """The cell's sum is clipped and applied, and is zero again; NotFinite steps nowhere."""
        if self._adam is None:
            raise CellError("this trainer has no optimizer: the core's has", retryable=False)
        began = perf_counter()
        self._holdings.settle(self._sums.views)
        found = self._holdings.norm(self._sums.views)
        if not isfinite(found):
            message = f"step from version {self.version}: the norm of the gradient is {found}"
            raise NotFinite(message, retryable=False)
        limit = self._adam.section.max_norm
        self._adam.step(self._sums.flats, scale=limit / found if found > limit else 1.0)
        self._sums.clear()
        self.version += 1
        return StepReport(
            version=self.version,
            gradient_norm=found,
            is_clipped=found > limit,
            lr=self._adam.section.lr,
            step_s=perf_counter() - began,
        )

    def clear(self) -> None:
        """Forgets the claims of this batch, whose work then returns to the queue."""
        self._sums.clear()

    @property
    def gradients(self) -> list[Tensor]:
        """This rank's sum as flat buckets, the same for this rank of every cell; not a copy."""
        return self._sums.flats

    @property
    def gradient_views(self) -> Mapping[str, Tensor]:
        """This rank's sum by parameter; not a copy."""
        return self._sums.views

    def whole_weights(self) -> dict[str, Tensor] | None:
        """This stage's weights in full, on its shard 0; None on other shards."""
        return self._holdings.whole()

    def load_weights(self, whole: Mapping[str, Tensor], *, version: int) -> None:
        """This rank's part of a whole model's weights; moments stay as they are."""
        parts = self._holdings.take(whole)
        if self._adam is not None:
            self._adam.read(parts)
        self.version = version

    @contextmanager
    def _arithmetic(self) -> Iterator[None]:
        """Kernels that give the same bits each time, where the section asks for them."""
        was = torch.get_deterministic_debug_mode()
        if self._section.deterministic:
            torch.use_deterministic_algorithms(True)
        try:
            yield
        finally:
            torch.set_deterministic_debug_mode(was)
