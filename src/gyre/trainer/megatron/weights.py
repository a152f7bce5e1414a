"""A model's weights under its own names and under Megatron's, whole or as one rank has them.

Rule 1: Megatron keeps queries, keys and values in one matrix, group of heads by group of heads.
Rule 2: it keeps gate and up in one matrix, the gate of a shard before the up of that shard.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from gyre.model.network import ModelDims
from gyre.trainer.distributed.pipeline_stage import spans
from gyre.trainer.distributed.rank_comm import RankPosition
from gyre.types.errors import ModelError

QKV, MLP = "self_attention.linear_qkv", "mlp.linear_fc1"
LAYER: Mapping[str, tuple[str, ...]] = {
    "input_layernorm": ("input_layernorm",),
    QKV: ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "self_attention.q_layernorm": ("self_attn.q_norm",),
    "self_attention.k_layernorm": ("self_attn.k_norm",),
    "self_attention.linear_proj": ("self_attn.o_proj",),
    "pre_mlp_layernorm": ("post_attention_layernorm",),
    MLP: ("mlp.gate_proj", "mlp.up_proj"),
    "mlp.linear_fc2": ("mlp.down_proj",),
}
"""Modules of a layer of Megatron's, each with those of the model that it stands for."""
_EMBEDDING, _HEAD = "model.embed_tokens.weight", "lm_head.weight"
_NORM = "model.norm.weight"
_ENDS = {
    _EMBEDDING: "embedding.word_embeddings.weight",
    _NORM: "decoder.final_layernorm.weight",
    _HEAD: "output_layer.weight",
}
_BY_INPUT = {"self_attention.linear_proj", "mlp.linear_fc2"}
_BY_OUTPUT = {QKV, MLP}
_KINDS = ("weight", "bias")


def fused(path: str, parts: Sequence[Tensor], *, groups: int) -> Tensor:
    """The one tensor that Megatron's module has for these, of a shard with so many groups."""
    if path == QKV:
        return torch.cat([one.reshape(groups, -1, *one.shape[1:]) for one in parts], 1).flatten(
            0, 1
        )
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))


def parted(path: str, whole: Tensor, *, groups: int, group_heads: int) -> tuple[Tensor, ...]:
    """The other way round; a group has `group_heads` heads of queries, one of keys and values."""
    if path == QKV:
        by_group = whole.reshape(groups, -1, *whole.shape[1:])
        size = by_group.shape[1] // (group_heads + 2)
        parts = torch.split(by_group, [group_heads * size, size, size], 1)
        return tuple(one.flatten(0, 1) for one in parts)
    return tuple(whole.chunk(len(LAYER[path])))


def to_megatron(
    tensors: Mapping[str, Tensor], shape: ModelDims, place: RankPosition
) -> dict[str, Tensor]:
    """What the rank at this place of a GPTModel holds of a whole model.

    A head that is tied to the embedding is given to the last stage, unless that is the first too.
    """
    found = {}
    span = spans(shape.layers, place.stages)[place.stage]
    for layer in span:
        for path, own in LAYER.items():
            for kind in _KINDS:
                names = [f"model.layers.{layer}.{one}.{kind}" for one in own]
                if not all(name in tensors for name in names):
                    continue
                parts = [_cut(path, tensors[name], place) for name in names]
                value = fused(path, parts, groups=shape.kv_heads // place.shards)
                found[f"decoder.layers.{layer - span.start}.{path}.{kind}"] = value
    for name in _ends(tensors, place):
        source = tensors.get(name, tensors[_EMBEDDING])
        part = source if name == _NORM else source.chunk(place.shards)[place.shard]
        found[_ENDS[name]] = part
    return found


def from_megatron(
    ranks: Sequence[tuple[RankPosition, Mapping[str, Tensor]]], shape: ModelDims, *, tied: bool
) -> dict[str, Tensor]:
    """A whole model from what all ranks of a GPTModel hold, under its own names."""
    found: dict[str, Tensor] = {}
    stages, shards = ranks[0][0].stages, ranks[0][0].shards
    at = {(place.stage, place.shard): tensors for place, tensors in ranks}
    for stage, span in enumerate(spans(shape.layers, stages)):
        held = [at[stage, shard] for shard in range(shards)]
        for layer in span:
            found |= _layer(held, f"decoder.layers.{layer - span.start}.", layer, shape)
    found[_EMBEDDING] = _joined([at[0, shard][_ENDS[_EMBEDDING]] for shard in range(shards)])
    found[_NORM] = at[stages - 1, 0][_ENDS[_NORM]]
    if not tied:
        heads = [at[stages - 1, shard][_ENDS[_HEAD]] for shard in range(shards)]
        found[_HEAD] = _joined(heads)
    return found


def _layer(
    held: Sequence[Mapping[str, Tensor]], prefix: str, layer: int, shape: ModelDims
) -> dict[str, Tensor]:
    found = {}
    groups = shape.kv_heads // len(held)
    heads = shape.heads // shape.kv_heads
    for path, own in LAYER.items():
        for kind in _KINDS:
            if (name := f"{prefix}{path}.{kind}") not in held[0]:
                continue
            shards = [parted(path, one[name], groups=groups, group_heads=heads) for one in held]
            for index, part in enumerate(own):
                parts = [one[index] for one in shards]
                whole = _whole(path, kind, parts)
                found[f"model.layers.{layer}.{part}.{kind}"] = whole
    return found


def _whole(path: str, kind: str, parts: Sequence[Tensor]) -> Tensor:
    if path in _BY_OUTPUT:
        return _joined(parts)
    return _joined(parts, 1) if path in _BY_INPUT and kind == "weight" else parts[0]


def _joined(parts: Sequence[Tensor], dim: int = 0) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(list(parts), dim)


def _cut(path: str, whole: Tensor, place: RankPosition) -> Tensor:
    dim = 0 if path in _BY_OUTPUT else 1 if path in _BY_INPUT and whole.dim() == 2 else None
    if dim is None or place.shards == 1:
        return whole
    if whole.shape[dim] % place.shards:
        message = f"{whole.shape[dim]} rows or columns cannot be split over {place.shards} ranks"
        raise ModelError(message)
    return whole.chunk(place.shards, dim)[place.shard]


def _ends(tensors: Mapping[str, Tensor], place: RankPosition) -> list[str]:
    has_head = place.is_last and (_HEAD in tensors or not place.is_first)
    held = {_EMBEDDING: place.is_first, _NORM: place.is_last, _HEAD: has_head}
    return [name for name, is_here in held.items() if is_here]
