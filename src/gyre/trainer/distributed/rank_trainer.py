"""Trainer of one rank of a multi-rank cell."""

from collections import deque
from collections.abc import Callable, Mapping
from math import nan, sqrt

import torch
from torch import Tensor

from gyre.config.sections import LossConfig, OptimizerConfig, TrainerConfig
from gyre.model.network import Network
from gyre.trainer.distributed.pipeline import (
    MicroStep,
    MicroStepResult,
    MicroStepSource,
    Pipeline,
    StreamEnd,
)
from gyre.trainer.distributed.pipeline_stage import PipelineStage
from gyre.trainer.distributed.rank_comm import RankComm
from gyre.trainer.distributed.tensor_parallel import ParameterSplit, split_network
from gyre.trainer.logprobs import check_claim
from gyre.trainer.loss import add_scores
from gyre.trainer.offload import OffloadableWeights, oom_guard
from gyre.trainer.trainer import BaseTrainer, arithmetic
from gyre.types.errors import CellError, ModelError, NotFinite
from gyre.types.training import Claim, Score


class ParameterShards:
    """The parameters of one rank: parts of some, some that shards share, one that ends share.

    Gradients are given by parameter name; every name of the rank is there, on every rank.
    """

    def __init__(self, stage: PipelineStage, split: ParameterSplit, lines: RankComm) -> None:
        self._lines = lines
        self._split = split
        self._place = lines.place
        self._parameters = dict(stage.network.module.named_parameters())
        self._tied: str | None = None
        """The embedding, where it is also the head of another stage, by its name here."""
        if stage.is_tied and self._place.stages > 1:
            ends = {"first": self._place.is_first, "last": self._place.is_last}
            names = {"first": "model.embed_tokens.weight", "last": "lm_head.weight"}
            self._tied = next((names[end] for end, is_here in ends.items() if is_here), None)

    def settle(self, gradients: Mapping[str, Tensor]) -> None:
        """Each gradient is, in place, that of the whole cell, bit-equal wherever it is held.

        Parts from each shard's own heads are summed; so is a head that is also the embedding.
        What shards compute alike is taken from shard 0, because sums of unlike rounding would
        let copies of one weight drift apart.
        """
        with self._lines.dropped_on_failure():
            self._sum_partial(gradients)
            self._sum_tied(gradients)
            if self._place.shards > 1:
                for name in self._parameters:
                    if name not in self._split.dims and name not in self._split.partial:
                        self._lines.within.broadcast(gradients[name])

    def norm(self, gradients: Mapping[str, Tensor]) -> float:
        """Of the whole cell's gradient, the same on every rank; each parameter counts once."""
        squares = [
            gradients[name].double().square().sum() for name in self._parameters if self._owns(name)
        ]
        mine = torch.stack(squares).sum() if squares else torch.zeros(())
        with self._lines.dropped_on_failure():
            return sqrt(float(self._lines.control.add_up(mine.double().cpu().reshape(1))))

    def whole(self) -> dict[str, Tensor] | None:
        """This stage's parameters in full, on its shard 0; None on other shards.

        Together the stages give every parameter of the model once.
        """
        found = {}
        with self._lines.dropped_on_failure():
            for name, parameter in self._parameters.items():
                value = parameter.detach()
                if name in self._split.dims:
                    parts = self._lines.within.gather(value, self._place.shards)
                    value = torch.cat(parts, self._split.dims[name])
                if self._owns(name):
                    found[name] = value
        return found if self._place.shard == 0 else None

    def take(self, whole: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Weights become this rank's parts of a whole model's, all of them or none.

        The parts themselves are returned, which may be wider than the weights.
        """
        parts = {}
        for name, parameter in self._parameters.items():
            source = self._name_in(whole, name)
            part = self._split.part(name, whole[source])
            if part.shape != parameter.shape:
                message = f"{source}: shape {tuple(part.shape)} where {tuple(parameter.shape)} fits"
                raise ModelError(message)
            parts[name] = part
        with torch.no_grad():
            for name, parameter in self._parameters.items():
                parameter.copy_(parts[name])
        return parts

    def _owns(self, name: str) -> bool:
        """Whether it is this rank's to count; a copy elsewhere, or no part of ours, is not."""
        if name == self._tied and not self._place.is_first:
            return False
        return name in self._split.dims or self._place.shard == 0

    def _name_in(self, whole: Mapping[str, Tensor], name: str) -> str:
        tied = name == self._tied and name not in whole
        source = "model.embed_tokens.weight" if tied else name
        if source not in whole:
            message = f"{source} is missing"
            raise ModelError(message)
        return source

    def _sum_partial(self, gradients: Mapping[str, Tensor]) -> None:
        names = [name for name in self._parameters if name in self._split.partial]
        if not names:
            return
        # One message for all, because each is as small as a head.
        parts = [gradients[name] for name in names]
        summed = self._lines.within.add_up(torch.cat([one.flatten() for one in parts]))
        for part, total in zip(
            parts, summed.split_with_sizes([one.numel() for one in parts]), strict=True
        ):
            part.copy_(total.view_as(part))

    def _sum_tied(self, gradients: Mapping[str, Tensor]) -> None:
        if self._tied is None:
            return
        mine = gradients[self._tied]
        other = torch.empty_like(mine)
        if self._place.is_first:
            self._lines.ahead.send(mine.clone(), self._place.stages - 1)
            self._lines.back.receive(other, self._place.stages - 1)
            mine.copy_(mine + other)
        else:
            self._lines.back.send(mine.clone(), 0)
            self._lines.ahead.receive(other, 0)
            # In the order of the first stage, so that both ends have the same bits.
            mine.copy_(other + mine)
        self._lines.settle()


class RankTrainer(BaseTrainer):
    """All ranks of a cell call the same methods in the same order; the driver alone drives.

    Rule 1: an error in a batch leaves its sum useless; `clear` it, and its work returns.
    Rule 2: every rank takes the same step or none does, because all know the same norm.
    """

    def __init__(
        self,
        network: Network,
        lines: RankComm,
        *,
        section: TrainerConfig,
        objective: LossConfig,
        optimizer: OptimizerConfig | None,
        temperature: float = 1.0,
        version: int = 0,
    ) -> None:
        """The network, whole when it comes, is cut down to this rank's part."""
        place = lines.place
        # Asked for its device while it is whole, because other stages keep no head.
        weights = OffloadableWeights(network)
        self._lines = lines
        self._is_paused = False
        split = split_network(network, lines.within, shard=place.shard, shards=place.shards)
        stage = PipelineStage(network, place, section, temperature=temperature)
        self._pipeline = Pipeline(stage, lines, objective)
        self._holdings = ParameterShards(stage, split, lines)
        super().__init__(network, weights, section=section, optimizer=optimizer, version=version)

    def drive(self, source: MicroStepSource) -> StreamEnd:
        """As `Pipeline.drive`: the gradients of what was closed are in the ranks' sums."""
        return self._streamed(lambda: self._pipeline.drive(source))

    def follow(self) -> StreamEnd:
        """As `Pipeline.follow`."""
        return self._streamed(self._pipeline.follow)

    def score(self, claim: Claim) -> tuple[Score, ...]:
        """Sum of log rho per share, on the driver; the others follow (SPEC 8.3).

        It closes the stream. A `MicroStepStream` scores the claims of a batch without doing so.
        """
        check_claim(claim, self.network)
        source = _Scoring(claim)
        self.drive(source)
        return add_scores(source.found)

    def whole_weights(self) -> dict[str, Tensor] | None:
        """This stage's weights in full, on its shard 0; None on other shards."""
        return self._holdings.whole()

    def offload(self, *, weights: bool = False) -> None:
        """This rank's part leaves the device; every rank refuses while the stream is paused."""
        if self._is_paused:
            raise CellError("the trainer cannot rest: its stream is paused; close it first")
        super().offload(weights=weights)

    def _streamed(self, work: Callable[[], StreamEnd]) -> StreamEnd:
        self._require_awake()
        # An error closes the stream, unless it ends the cell.
        self._is_paused = False
        with arithmetic(deterministic=self._section.deterministic):
            ended = oom_guard("a micro-step", work)
        # Not whether this stage holds any in flight, because the last one never does.
        self._is_paused = ended is StreamEnd.PAUSED
        return ended

    def _norm(self) -> float:
        """Of the whole cell's gradient, the same on every rank; no number if any rank has none."""
        if not self._all_have_sums():
            return nan
        self._holdings.settle(self._sums.views)
        return self._holdings.norm(self._sums.views) * self._sums.unit

    def _load(self, tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        return self._holdings.take(tensors)

    def _all_have_sums(self) -> bool:
        """Whether no rank of the cell has an exact sum that is none; all ranks ask together."""
        if not self._section.deterministic:
            return True
        mine = 0.0
        try:
            self._sums.check()
        except NotFinite:
            mine = 1.0
        with self._lines.dropped_on_failure():
            return not self._lines.control.add_up(torch.tensor([mine])).any()


class _Scoring:
    """A claim's packs, to be scored and nothing else."""

    def __init__(self, claim: Claim) -> None:
        self._waiting = deque(
            # Of B*N nothing depends here.
            MicroStep(pack=pack, shares=claim.shares, num_executions=1, scores=None)
            for pack in claim.packs
        )
        self.found: list[tuple[Score, ...]] = []

    def take(self) -> MicroStep | StreamEnd:
        return self._waiting.popleft() if self._waiting else StreamEnd.CLOSED

    def finished(self, result: MicroStepResult) -> None:
        self.found.append(result.scores)
