"""What each rank of a cell holds of the parameters, and how parts become whole again."""

from collections.abc import Mapping
from math import sqrt

import torch
from torch import Tensor

from gyre.trainer.distributed.pipeline_stage import PipelineStage
from gyre.trainer.distributed.rank_comm import RankComm
from gyre.trainer.distributed.tensor_parallel import ParameterSplit
from gyre.types.errors import ModelError


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
