"""The trainer of one rank of a cell: its part of the network, the gradient and the optimizer."""

from collections.abc import Mapping

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
from gyre.train.update import arithmetic, core, stepped
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
        with arithmetic(deterministic=self._section.deterministic):
            return with_room("a micro-step", lambda: self._pipeline.drive(source))

    def follow(self) -> Ended:
        """As `Pipeline.follow`."""
        with arithmetic(deterministic=self._section.deterministic):
            return with_room("a micro-step", self._pipeline.follow)

    def step(self) -> StepReport:
        """The cell's sum is clipped and applied, and is zero again; NotFinite steps nowhere."""
        adam = core(self._adam)

        def norm() -> float:
            self._holdings.settle(self._sums.views)
            return self._holdings.norm(self._sums.views)

        report = stepped(adam, self._sums, norm, version=self.version)
        self.version = report.version
        return report

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
