"""Decoder layers for a CPU: matrices with one input joined, all of them packed for its kernels."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from gyre.model.network import Attend, Network

TYPICAL_ROWS = 32
"""Tokens of a pass that the packing is made for; it serves any number."""
FAMILIES = ("llama", "qwen2", "qwen3")
"""Families whose layers are what `FusedCpuLayers` computes."""

Apply = Callable[[Tensor], Tensor]


def can_join(network: Network) -> bool:
    """Whether the network is on a CPU that packs matrices of its type."""
    if network.device.type != "cpu" or not torch._C._has_mkldnn:
        return False
    config: Any = network.module.config
    packs = {
        torch.float32: True,
        torch.bfloat16: torch.ops.mkldnn._is_mkldnn_bf16_supported(),
    }
    return config.model_type in FAMILIES and packs.get(network.dtype, False)


@dataclass(frozen=True, slots=True)
class _Layer:
    """One layer's matrices, packed, beside the modules that need no packing."""

    module: Any
    query_key_value: Apply
    output: Apply
    gate_up: Apply
    down: Apply


class FusedCpuLayers:
    """Copies of the weights as they are now: made anew when those change."""

    def __init__(self, network: Network) -> None:
        self._shape = network.shape
        self._layers = [_joined(layer) for layer in network.layers]
        self.logits = _packed([network.head], [None])

    def layer(
        self, index: int, hidden: Tensor, rotary: tuple[Tensor, Tensor], attend: Attend
    ) -> Tensor:
        """The same as the network's own layer, to rounding."""
        layer = self._layers[index]
        module = layer.module
        query, key, value = self._heads(layer, module.input_layernorm(hidden))
        query, key = _turned(query, rotary), _turned(key, rotary)
        attended = attend(index, query, key, value, module.self_attn.scaling)
        hidden = hidden + layer.output(attended.flatten(2))
        gate, up = layer.gate_up(module.post_attention_layernorm(hidden)).chunk(2, dim=-1)
        return hidden + layer.down(module.mlp.act_fn(gate) * up)

    def _heads(self, layer: _Layer, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Query, key and value as (1, heads, T, head_dim)."""
        shape = self._shape
        attention = layer.module.self_attn
        joined = layer.query_key_value(hidden).view(1, hidden.shape[1], -1, shape.head_dim)
        query, key, value = torch.split(
            joined, [shape.heads, shape.kv_heads, shape.kv_heads], dim=2
        )
        if hasattr(attention, "q_norm"):
            query, key = attention.q_norm(query), attention.k_norm(key)
        return query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2)


def _joined(layer: nn.Module) -> _Layer:
    module: Any = layer
    attention, mlp = module.self_attn, module.mlp
    return _Layer(
        module,
        query_key_value=_linear(attention.q_proj, attention.k_proj, attention.v_proj),
        output=_linear(attention.o_proj),
        gate_up=_linear(mlp.gate_proj, mlp.up_proj),
        down=_linear(mlp.down_proj),
    )


def _linear(*modules: Any) -> Apply:
    return _packed([one.weight for one in modules], [one.bias for one in modules])


def _packed(weights: list[Tensor], biases: list[Tensor | None]) -> Apply:
    """A function that multiplies by the weights, one below the other."""
    weight = torch.cat([one.detach() for one in weights])
    there = [one.detach() for one in biases if one is not None]
    bias = torch.cat(there) if there else None
    packed = torch.ops.mkldnn._reorder_linear_weight(weight, TYPICAL_ROWS)
    multiply = torch.ops.mkldnn._linear_pointwise.default

    def apply(hidden: Tensor) -> Tensor:
        return multiply(hidden, packed, bias, "none", [], "")  # type: ignore[no-any-return]

    return apply


def _turned(heads: Tensor, rotary: tuple[Tensor, Tensor]) -> Tensor:
    """Heads (1, heads, T, head_dim) with their rotary positions."""
    cosine, sine = (one.unsqueeze(1) for one in rotary)
    left, right = heads.chunk(2, dim=-1)
    return heads * cosine + torch.cat((-right, left), dim=-1) * sine
