"""A layer's matrices split over the ranks of a stage: heads of attention, columns of the MLP.

Rule 1: q, k, v, gate and up are split by output; o and down by input, and their products summed.
Rule 2: what a layer reads is the same on every shard, so its gradient is the sum over shards.
Rule 3: norms over the hidden size see whole gradients; norms within a head see their own heads'.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from gyre.model.network import Network
from gyre.trainer.distributed.rank_comm import CommGroup
from gyre.types.errors import ModelError

_BY_OUTPUT = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
_BY_OUTPUT_MLP = ("mlp.gate_proj", "mlp.up_proj")
_BY_INPUT = ("self_attn.o_proj", "mlp.down_proj")
_WITHIN_HEADS = ("self_attn.q_norm", "self_attn.k_norm")
_BEFORE_SPLIT = ("input_layernorm", "post_attention_layernorm")
_KNOWN = {*_BY_OUTPUT, *_BY_OUTPUT_MLP, *_BY_INPUT, *_WITHIN_HEADS, *_BEFORE_SPLIT}


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterSplit:
    """Which parameters of a network are in parts, by name; all others are whole on each shard."""

    shard: int
    shards: int
    dims: Mapping[str, int]
    """Parameters of which a shard holds a part, and the dimension they are cut along."""
    partial: frozenset[str]
    """Whole parameters whose gradient on a shard is only a part of the sum."""

    def part(self, name: str, whole: Tensor) -> Tensor:
        """What this shard holds of a whole parameter."""
        if name not in self.dims:
            return whole
        return whole.chunk(self.shards, self.dims[name])[self.shard]


UNSPLIT = ParameterSplit(shard=0, shards=1, dims=MappingProxyType({}), partial=frozenset())
"""A network whose layers are whole."""


def split_network(network: Network, line: CommGroup, *, shard: int, shards: int) -> ParameterSplit:
    """The network's layers hold this shard's part only, and add up over `line` as they run.

    A model that cannot be split so is refused, and left as it was.
    """
    if shards == 1:
        return UNSPLIT
    layers = {
        name: layer
        for name, layer in network.module.named_modules()
        if hasattr(layer, "self_attn") and hasattr(layer, "mlp")
    }
    _check(network, layers, shards)
    dims: dict[str, int] = {}
    partial: set[str] = set()
    for name, layer in layers.items():
        for path in (*_BY_OUTPUT, *_BY_OUTPUT_MLP):
            dims |= _split_by_output(f"{name}.{path}", layer.get_submodule(path), shard, shards)
        for path in _BY_INPUT:
            dims |= _split_by_input(f"{name}.{path}", layer, path, shard, shards, line)
        for path in _BEFORE_SPLIT:
            layer.get_submodule(path).register_forward_hook(_entering(line))
        partial |= {f"{name}.{one}.weight" for one in _WITHIN_HEADS if _has(layer, one)}
    return ParameterSplit(
        shard=shard, shards=shards, dims=MappingProxyType(dims), partial=frozenset(partial)
    )


def _check(network: Network, layers: Mapping[str, nn.Module], shards: int) -> None:
    shape = network.shape
    config: Any = network.module.config
    sizes = {
        "attention heads": shape.heads,
        "key-value heads": shape.kv_heads,
        "MLP columns": config.intermediate_size,
    }
    for what, size in sizes.items():
        if size % shards:
            message = f"{size} {what} cannot be split over {shards} ranks"
            raise ModelError(message)
    if not layers:
        message = "no layer with self_attn and mlp, which is all that can be split"
        raise ModelError(message)
    for name, layer in layers.items():
        held = {one.rpartition(".")[0] for one, _ in layer.named_parameters()}
        if strange := sorted(held - _KNOWN) or sorted(_KNOWN - {*_WITHIN_HEADS} - held):
            message = f"{name}: cannot split a layer with or without {', '.join(strange)}"
            raise ModelError(message)
        for path in _WITHIN_HEADS:
            size = layer.get_parameter(f"{path}.weight").numel() if _has(layer, path) else None
            if size not in {None, shape.head_dim}:
                message = f"{name}.{path} spans {size} values, more than one head"
                raise ModelError(message)


def _has(layer: nn.Module, path: str) -> bool:
    return any(name == path for name, _ in layer.named_modules())


def _split_by_output(name: str, linear: Any, shard: int, shards: int) -> dict[str, int]:
    dims = {}
    for held, parameter in list(linear.named_parameters()):
        setattr(linear, held, _part(parameter, 0, shard, shards))
        dims[f"{name}.{held}"] = 0
    linear.out_features //= shards
    return dims


def _split_by_input(
    name: str, layer: nn.Module, path: str, shard: int, shards: int, line: CommGroup
) -> dict[str, int]:
    linear: Any = layer.get_submodule(path)
    weight = _part(linear.weight, 1, shard, shards)
    layer.set_submodule(path, _SummedLinear(weight, linear.bias, line))
    return {f"{name}.weight": 1}


def _part(parameter: nn.Parameter, dim: int, shard: int, shards: int) -> nn.Parameter:
    # A clone, because a view would keep the whole matrix in memory.
    part = parameter.detach().chunk(shards, dim)[shard].clone()
    return nn.Parameter(part, requires_grad=parameter.requires_grad)


class _SummedLinear(nn.Module):
    """Products of the shards' inputs, added up; the bias, whole on each shard, is added once."""

    def __init__(self, weight: nn.Parameter, bias: nn.Parameter | None, line: CommGroup) -> None:
        super().__init__()
        self.weight = weight
        self.bias = bias
        self._line = line

    def forward(self, hidden: Tensor) -> Tensor:
        summed: Tensor = _Leave.apply(functional.linear(hidden, self.weight), self._line)  # type: ignore[no-untyped-call]
        return summed if self.bias is None else summed + self.bias


def _entering(line: CommGroup) -> Any:
    def hook(module: nn.Module, inputs: tuple[Tensor, ...], normed: Tensor) -> Any:
        return _Enter.apply(normed, line)  # type: ignore[no-untyped-call]

    return hook


class _Enter(torch.autograd.Function):
    """Into the split part: the value as it is, its gradient summed over shards."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, line: CommGroup) -> Tensor:
        ctx.line = line
        return hidden.view_as(hidden)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        # Summed in a copy, because autograd may hold the same tensor for another path.
        return ctx.line.add_up(gradients[0].clone(memory_format=torch.contiguous_format)), None


class _Leave(torch.autograd.Function):
    """Out of the split part: the value summed over shards, its gradient as it is."""

    @staticmethod
    def forward(ctx: Any, part: Tensor, line: CommGroup) -> Tensor:
        return line.add_up(part.clone(memory_format=torch.contiguous_format))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0], None
