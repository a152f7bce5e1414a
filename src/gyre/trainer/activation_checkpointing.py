"""Which of a layer's values are kept for the backward pass and which are computed again."""

from collections.abc import Callable
from enum import Enum
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
    noop_context_fn,
)

from gyre.model.attention_kernels import TileAttention
from gyre.model.network import Attend, Network

_ATTENTION = {
    "aten::_scaled_dot_product_flash_attention_for_cpu",
    "aten::_scaled_dot_product_cudnn_attention",
    "gyre::tile_attention",
}
"""Operators whose outputs are dear to compute and small to keep."""


class ActivationCheckpointing(Enum):
    """How much of a layer is recomputed in the backward pass; more takes less memory."""

    NOTHING = "nothing"
    DENSE = "dense"
    """All but attention, whose outputs are kept beside each layer's input."""
    LAYER = "layer"
    """All of it: only each layer's input is kept."""


def _kept(_: Any, operator: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    found = operator.name() in _ATTENTION
    return CheckpointPolicy.MUST_SAVE if found else CheckpointPolicy.PREFER_RECOMPUTE


def run_layer(
    network: Network,
    index: int,
    hidden: Tensor,
    rotary: tuple[Tensor, Tensor],
    attend: Attend,
    recompute: ActivationCheckpointing,
) -> Tensor:
    """One decoder layer over (1, T, hidden), with as much kept for its backward pass as said."""
    layer = network.layers[index]
    if not hidden.is_cuda:
        return _layer(layer, hidden, rotary, attend, recompute)
    if not isinstance(attend, TileAttention):
        # FlexAttention compiles by itself, and not inside a layer whose length is left open;
        # neither does it run under the watch that keeping its outputs alone would take.
        whole = (
            ActivationCheckpointing.LAYER
            if recompute is ActivationCheckpointing.DENSE
            else recompute
        )
        return _layer(layer, hidden, rotary, attend, whole)
    # Layers differ in their number, which is then an input and not a reason to compile again.
    with torch._dynamo.config.patch(allow_unspec_int_on_nn_module=True):
        found: Tensor = _compiled()(layer, hidden, rotary, attend, recompute)
    way_back: Any = found.grad_fn
    if way_back is not None:
        # Compiled, it knows attention by its number only; this keeps attention in being.
        way_back.metadata["attend"] = attend
    return found


def _layer(
    layer: nn.Module,
    hidden: Tensor,
    rotary: tuple[Tensor, Tensor],
    attend: Attend,
    recompute: ActivationCheckpointing,
) -> Tensor:
    def work(state: Tensor) -> Tensor:
        return layer(  # type: ignore[no-any-return]
            state, attention_mask=None, position_embeddings=rotary, attend=attend
        )

    if recompute is ActivationCheckpointing.NOTHING or not torch.is_grad_enabled():
        return work(hidden)
    contexts: Callable[[], Any] = noop_context_fn
    if recompute is ActivationCheckpointing.DENSE:
        contexts = partial(create_selective_checkpoint_contexts, _kept)
    # Nothing in a layer draws random numbers, so none of their state has to be put back.
    found: Tensor = checkpoint(
        work, hidden, use_reentrant=False, preserve_rng_state=False, context_fn=contexts
    )
    return found


@cache
def _compiled() -> Any:
    return torch.compile(_layer, dynamic=True)


def hidden_states(
    network: Network,
    ids: Tensor,
    positions: Tensor,
    attend: Attend,
    recompute: ActivationCheckpointing,
) -> Tensor:
    """Ids and positions (T) to the last normed states (T, hidden)."""
    state = network.embed(ids)
    rotary = network.rotary(state, positions)
    for index in range(len(network.layers)):
        state = run_layer(network, index, state, rotary, attend, recompute)
    return network.norm(state).squeeze(0)


def recompute_for(network: Network, *, checkpoint: bool) -> ActivationCheckpointing:
    """What a trainer computes again: on CUDA attention is kept, where it is dear and fits."""
    if not checkpoint:
        return ActivationCheckpointing.NOTHING
    return (
        ActivationCheckpointing.DENSE
        if network.device.type == "cuda"
        else ActivationCheckpointing.LAYER
    )
