"""Decoder layers of a network computed by Megatron-core's, with the weights that are there.

Rule 1: weights stay where they are, under the names that the model's own files give them; a layer
of Megatron's has none of its own, and is lent what it needs for each pass.
Rule 2: attention is handed in with each call, as for every network here, so that Megatron's layers
see packs of rows and trees alike.
Rule 3: shards add up over the lines of their cell; torch's registry of groups has no part in it.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.transformer import TransformerConfig
from megatron.core.transformer.spec_utils import build_module
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed import HashStore  # type: ignore[attr-defined]
from torch.func import functional_call
from torch.nn import functional

from gyre.model.network import Attend, Network
from gyre.trainer.distributed.rank_comm import CommGroup
from gyre.trainer.megatron.weights import LAYER, fused
from gyre.types.errors import ModelError


def install(network: Network, *, line: CommGroup | None, shard: int, shards: int) -> None:
    """Layers that the network still has are Megatron's from now on; all else is as it was.

    `line` is that of the shards; each has its part of the weights already.
    """
    _check(network)
    decoder = network.decoder
    held = {at: one for at, one in enumerate(decoder.layers) if not isinstance(one, nn.Identity)}
    config = _config(network, held, shards)
    ranks = _ranks(line, shard, shards)
    groups = network.shape.kv_heads // shards
    lent = {at: _Lent(one, _built(config, at, ranks), groups=groups) for at, one in held.items()}
    for at, layer in lent.items():
        decoder.layers[at] = layer
    decoder.rotary_emb = _Angles(decoder.rotary_emb.inv_freq)


class _Lent(nn.Module):
    """A layer of Megatron's over the modules of a layer of the model, which hold the weights."""

    def __init__(self, plain: nn.Module, layer: nn.Module, *, groups: int) -> None:
        super().__init__()
        for name, child in plain.named_children():
            self.add_module(name, child)
        # In a tuple, so that it is no part of this module: it has no weights to be found.
        self._layer = (layer,)
        self._groups = groups
        self._sources = _sources(self, layer)

    # Its groups are ours, of which a compiler knows nothing.
    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def forward(
        self,
        hidden: Tensor,
        *,
        attention_mask: None,
        position_embeddings: tuple[Tensor, Tensor],
        attend: Attend,
    ) -> Tensor:
        """As layers of transformers do: (1, T, hidden) to the same."""
        # What it knows as a bias is handed on to attention untouched.
        given = {"rotary_pos_emb": position_embeddings, "attention_bias": attend}
        found, _ = functional_call(
            self._layer[0], self._weights(), (hidden.transpose(0, 1),), given
        )
        return found.transpose(0, 1)  # type: ignore[no-any-return]

    def _weights(self) -> dict[str, Tensor]:
        return {
            name: fused(path, [self.get_parameter(one) for one in own], groups=self._groups)
            for name, (path, own) in self._sources.items()
        }


def _sources(held: nn.Module, layer: nn.Module) -> dict[str, tuple[str, list[str]]]:
    """By parameter of Megatron's layer: its module, and the parameters that it is made of."""
    mine = {name for name, _ in held.named_parameters()}
    found: dict[str, tuple[str, list[str]]] = {}
    for name, _ in layer.named_parameters():
        path, _, kind = name.rpartition(".")
        own = [f"{one}.{kind}" for one in LAYER.get(path, ())]
        if not own or not mine.issuperset(own):
            message = f"Megatron's layer has {name}, for which the model has nothing"
            raise ModelError(message)
        found[name] = (path, own)
    if spare := mine - {one for _, own in found.values() for one in own}:
        message = f"the model has {min(spare)}, for which Megatron's layer has nothing"
        raise ModelError(message)
    return found


class _PackAttention(nn.Module):
    """What Megatron's layer asks for attention; the pass that calls the layer has brought it."""

    def __init__(self, *, config: Any, layer_number: int, **_: Any) -> None:
        super().__init__()
        self._layer = layer_number - 1
        self._scale = config.kv_channels**-0.5

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: None,
        /,
        *,
        attention_bias: Attend,
        **_: Any,
    ) -> Tensor:
        """(T, 1, heads, d) each, to (T, 1, heads * d)."""
        q, k, v = (one.permute(1, 2, 0, 3) for one in (query, key, value))
        return attention_bias(self._layer, q, k, v, self._scale).flatten(2).transpose(0, 1)


class _Angles(nn.Module):
    """Rotary angles of positions as Megatron's attention takes them, for queries and for keys."""

    inv_freq: Tensor

    def __init__(self, inv_freq: Tensor) -> None:
        super().__init__()
        self.register_buffer("inv_freq", inv_freq, persistent=False)

    def forward(self, hidden: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        half = positions[0].to(self.inv_freq.device).float().outer(self.inv_freq.float())
        angles = torch.cat([half, half], 1)[:, None, None]
        return angles, angles


class _Group:
    """The shards of a stage, as far as Megatron asks for a group: its size, and sums over it."""

    def __init__(self, line: CommGroup | None, shard: int, shards: int) -> None:
        self._line, self._shard, self._shards = line, shard, shards

    def size(self) -> int:
        return self._shards

    def rank(self) -> int:
        return self._shard

    def allreduce(self, tensors: Sequence[Tensor], _: object) -> "_Group":
        if self._line is not None:
            for one in tensors:
                self._line.add_up(one)
        return self

    def wait(self) -> None:
        """What was asked for is there already."""


def _ranks(line: CommGroup | None, shard: int, shards: int) -> Any:
    if not dist.is_initialized():
        # Megatron looks for a default group before it looks at the one it was given.
        dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    alone = _Group(None, 0, 1)
    return ProcessGroupCollection(tp=_Group(line, shard, shards), cp=alone, pp=alone)


def _config(network: Network, held: Mapping[int, Any], shards: int) -> Any:
    """The network in Megatron's words, with nothing that is fused, dropped or made up."""
    shape, plain = network.shape, network.module.config
    first = next(iter(held.values()))
    return TransformerConfig(
        num_layers=shape.layers,
        hidden_size=shape.hidden,
        ffn_hidden_size=plain.intermediate_size,
        num_attention_heads=shape.heads,
        num_query_groups=shape.kv_heads,
        kv_channels=shape.head_dim,
        layernorm_epsilon=plain.rms_norm_eps,
        tensor_model_parallel_size=shards,
        params_dtype=next(network.module.parameters()).dtype,
        normalization="RMSNorm",
        qk_layernorm=hasattr(first.self_attn, "q_norm"),
        add_bias_linear=False,
        add_qkv_bias=first.self_attn.q_proj.bias is not None,
        gated_linear_unit=True,
        activation_func=functional.silu,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        bias_activation_fusion=False,
        bias_dropout_fusion=False,
        gradient_accumulation_fusion=False,
        apply_rope_fusion=False,
        persist_layer_norm=False,
        use_cpu_initialization=True,
        perform_initialization=False,
    )


def _built(config: Any, index: int, ranks: Any) -> nn.Module:
    """A layer after the local specification, which needs nothing but torch; it has no memory."""
    spec = get_gpt_layer_local_spec(qk_layernorm=config.qk_layernorm, normalization="RMSNorm")
    spec.submodules.self_attention.submodules.core_attention = _PackAttention
    build = partial(build_module, spec, config=config, layer_number=index + 1)
    with torch.device("meta"):
        return build(pg_collection=ranks)  # type: ignore[no-any-return]


def _check(network: Network) -> None:
    scaling = getattr(network.decoder.rotary_emb, "attention_scaling", 1.0)
    if scaling != 1.0:
        message = f"rotary angles with an attention factor of {scaling} are not Megatron's"
        raise ModelError(message)
