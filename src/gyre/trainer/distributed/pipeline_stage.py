"""One stage of a network: some of its layers, with the embedding before or the head behind them."""

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn

from gyre.config.sections import TrainerConfig
from gyre.model.attention import attention_for
from gyre.model.network import Network
from gyre.model.packed_batch import PackedBatch
from gyre.trainer.activation_checkpointing import recompute_for, run_layer
from gyre.trainer.distributed.rank_comm import RankPosition
from gyre.trainer.logprobs import logprobs
from gyre.types.errors import ModelError


def spans(layers: int, stages: int) -> list[range]:
    """Which layers each stage owns: as even as can be, the last the smaller, as it has the head."""
    if layers < stages:
        message = f"{layers} layers cannot fill {stages} stages"
        raise ModelError(message)
    ends = [-(-layers * stage // stages) for stage in range(stages + 1)]
    return [range(begin, end) for begin, end in pairwise(ends)]


def is_tied(network: Network) -> bool:
    """Whether the head is the embedding."""
    return network.head is network.decoder.embed_tokens.weight


@dataclass(frozen=True, slots=True, kw_only=True)
class StageActivations:
    """What a forward pass left for its backward pass."""

    incoming: Tensor | None
    """The states that came in, which will have a gradient; None where ids came in."""
    outgoing: Tensor
    """States for the next stage, or log-probabilities of the targets."""


class PipelineStage:
    """A network cut down to one stage's part, and the passes over it."""

    def __init__(
        self,
        network: Network,
        place: RankPosition,
        section: TrainerConfig,
        *,
        temperature: float = 1.0,
    ) -> None:
        """The network gives up every parameter of other stages; names and numbers stay.

        `temperature` is that of the rollouts, so that ratios compare like with like.
        """
        self.network = network
        self.place = place
        self.span = spans(network.shape.layers, place.stages)[place.stage]
        self.is_tied = is_tied(network)
        self._section = section
        self._temperature = temperature
        self._recompute = recompute_for(network, checkpoint=section.checkpoint)
        self.device, self.dtype = network.device, network.dtype
        _cut(network, self.span, place)

    def forward(
        self, packed: PackedBatch, incoming: Tensor | None, *, keep: bool
    ) -> StageActivations:
        """The pass, with or without what a backward pass needs."""
        with torch.set_grad_enabled(keep):
            if incoming is None:
                state = self.network.embed(packed.ids)
            else:
                state = incoming.requires_grad_(keep)
            rotary = self.network.rotary(state, packed.positions)
            attend = attention_for(packed, self.dtype)
            for index in self.span:
                state = run_layer(self.network, index, state, rotary, attend, self._recompute)
            if self.place.is_last:
                state = self._logprobs(packed, state)
        return StageActivations(incoming=incoming, outgoing=state)

    def backward(self, passed: StageActivations, gradient: Tensor) -> Tensor | None:
        """The gradient of what came in; those of parameters are added to theirs."""
        torch.autograd.backward([passed.outgoing], [gradient])
        return None if passed.incoming is None else passed.incoming.grad

    def empty_states(self, packed: PackedBatch) -> Tensor:
        """Room for the states or gradients of a pack, as they travel between stages."""
        size = (1, packed.num_tokens, self.network.shape.hidden)
        return torch.empty(size, dtype=self.dtype, device=self.device)

    def _logprobs(self, packed: PackedBatch, state: Tensor) -> Tensor:
        hidden_TH = self.network.norm(state).squeeze(0)
        return logprobs(
            hidden_TH,
            self.network.head,
            packed.predictors,
            packed.labels,
            chunk_targets=self._section.logits_tokens,
            temperature=self._temperature,
        )


def _cut(network: Network, span: range, place: RankPosition) -> None:
    """Layers keep their places in the list, so that parameters keep their names."""
    module, decoder = network.module, network.decoder
    for index in range(network.shape.layers):
        if index not in span:
            decoder.layers[index] = nn.Identity()
    if not place.is_first:
        decoder.embed_tokens = nn.Identity()
    if not place.is_last:
        decoder.norm = nn.Identity()
        module.lm_head = nn.Identity()
