"""Forward pass on any device; picks CUDA graphs where possible.

Attention of one pass over cached blocks, gathered by call, on any device.

Shapes: T tokens of the pass, G calls of a group, L slots seen by each, K key-value heads, H heads
of one of them, D numbers of a head.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from gyre.config.sections import EngineConfig
from gyre.inference.engine.cuda_graphs import BLOCK_TOKENS, GraphForward, try_out
from gyre.inference.engine.forward import Forward, ForwardBatch
from gyre.inference.engine.kv_cache import KvCache
from gyre.inference.engine.sampler import BatchSampling, sample_packed
from gyre.model.network import Attend, Network
from gyre.types.errors import ConfigError
from gyre.types.training import Ints

GROUP_TOKENS = 4096
"""Slots gathered at once for calls that sample: as much as stays in a processor's cache."""
MASK_TOKENS = 256
"""Tokens of a prompt that attend at once, so that their mask stays small."""


class Scratch:
    """Memory for gathered keys and values, kept from pass to pass."""

    def __init__(self, store: KvCache) -> None:
        self._store = store
        self._held: Tensor | None = None

    def gather(self, layer: int, blocks: Tensor) -> Tensor:
        """Keys and values (2, K, slots, D) of the blocks, until the next gathering."""
        held = self._store.layer(layer)
        _, heads, slots, size = held.shape
        per_block = self._store.block_tokens * size
        by_block = held.view(2 * heads, slots // self._store.block_tokens, per_block)
        count = 2 * heads * len(blocks) * per_block
        if self._held is None or len(self._held) < count:
            self._held = torch.empty(count, dtype=held.dtype, device=held.device)
        out = self._held[:count].view(2 * heads, len(blocks), per_block)
        torch.index_select(by_block, 1, blocks, out=out)
        return out.view(2, heads, -1, size)


@dataclass(frozen=True, slots=True)
class _Group:
    """Calls that compute one token each, padded to one length."""

    rows: Tensor
    """G: tokens of the pass."""
    blocks: Tensor
    """G * blocks of the longest."""
    mask: Tensor
    """(G, 1, 1, L): 0 where a slot is seen."""


@dataclass(frozen=True, slots=True)
class _Stretch:
    """Neighbouring tokens of one prompt."""

    first: int
    last: int
    blocks: Tensor
    seen: int
    """Slots seen by the last of them."""
    mask: Tensor | None
    """(tokens, seen); None: the plain triangle."""


class PagedAttention:
    """Writes a pass's keys and values into the store and attends over all that its calls have."""

    def __init__(
        self, work: ForwardBatch, store: KvCache, scratch: Scratch, dtype: torch.dtype
    ) -> None:
        self._store = store
        self._scratch = scratch
        self._device = store.values.device
        self._dtype = dtype
        self._slots = torch.from_numpy(work.slots).to(self._device, torch.int64)
        counts = np.diff(work.starts)
        self._groups = list(self._grouped(work, np.flatnonzero(counts == 1).astype(np.int32)))
        self._stretches = [
            stretch
            for call in np.flatnonzero(counts > 1).tolist()
            for stretch in self._stretched(work, call)
        ]

    def __call__(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float
    ) -> Tensor:
        self._store.write(layer, self._slots, key[0], value[0])
        heads, kv_heads = query.shape[1], key.shape[1]
        rows_THD = query[0].transpose(0, 1)
        out_THD = torch.empty_like(rows_THD, memory_format=torch.contiguous_format)
        for group in self._groups:
            held = self._scratch.gather(layer, group.blocks)
            # Heads that share keys are rows of one query, which reads those keys once.
            count, size = len(group.rows), query.shape[-1]
            taken = rows_THD[group.rows].view(count, kv_heads, -1, size)
            keys, values = held.view(2, kv_heads, count, -1, size).transpose(1, 2)
            found = scaled_dot_product_attention(
                taken, keys, values, attn_mask=group.mask, scale=scale
            )
            out_THD[group.rows] = found.flatten(1, 2)
        for part in self._stretches:
            held = self._scratch.gather(layer, part.blocks)[:, :, : part.seen]
            taken = query[0].view(kv_heads, -1, *query.shape[2:])[:, :, part.first : part.last]
            keys, values = held.unsqueeze(2).expand(-1, -1, heads // kv_heads, -1, -1)
            found = scaled_dot_product_attention(
                taken, keys, values, attn_mask=part.mask, is_causal=part.mask is None, scale=scale
            )
            out_THD[part.first : part.last] = found.flatten(0, 1).transpose(0, 1)
        return out_THD.unsqueeze(0)

    def _grouped(self, work: ForwardBatch, calls: Ints) -> Iterator[_Group]:
        """Calls of like length together, so that little is padded."""
        block_tokens = self._store.block_tokens
        order = calls[np.argsort(work.lengths[calls], kind="stable")][::-1]
        while len(order):
            most = -(-int(work.lengths[order[0]]) // block_tokens)
            group = order[: max(1, GROUP_TOKENS // (most * block_tokens))]
            order = order[len(group) :]
            seen = np.arange(most * block_tokens) < work.lengths[group, None]
            yield _Group(
                rows=self._on(work.starts[group]),
                blocks=self._on(work.blocks[group, :most].reshape(-1)),
                mask=self._mask(seen)[:, None, None],
            )

    def _stretched(self, work: ForwardBatch, call: int) -> Iterator[_Stretch]:
        start, end = int(work.starts[call]), int(work.starts[call + 1])
        length = int(work.lengths[call])
        before = length - (end - start)
        whole = not before and length <= MASK_TOKENS
        for first in range(start, end, MASK_TOKENS):
            last = min(first + MASK_TOKENS, end)
            seen = before + last - start
            places = np.arange(before + first - start, seen)
            count = -(-seen // self._store.block_tokens)
            yield _Stretch(
                first=first,
                last=last,
                blocks=self._on(work.blocks[call, :count]),
                seen=seen,
                mask=None if whole else self._mask(np.arange(seen) <= places[:, None]),
            )

    def _on(self, values: Ints) -> Tensor:
        return torch.from_numpy(values.astype(np.int64)).to(self._device)

    def _mask(self, seen: "np.ndarray[tuple[int, ...], np.dtype[np.bool_]]") -> Tensor:
        there = torch.from_numpy(seen).to(self._device)
        # Numbers rather than booleans, which every layer would have to turn into numbers.
        return torch.zeros(there.shape, dtype=self._dtype, device=self._device).masked_fill_(
            ~there, -torch.inf
        )


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
    """The network's layers with fused projections for a CPU; fused anew when weights change."""

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
    return _packed([module.weight for module in modules], [module.bias for module in modules])


def _packed(weights: list[Tensor], biases: list[Tensor | None]) -> Apply:
    """A function that multiplies by the weights, one below the other."""
    weight = torch.cat([part.detach() for part in weights])
    there = [part.detach() for part in biases if part is not None]
    bias = torch.cat(there) if there else None
    packed = torch.ops.mkldnn._reorder_linear_weight(weight, TYPICAL_ROWS)
    multiply = torch.ops.mkldnn._linear_pointwise.default

    def apply(hidden: Tensor) -> Tensor:
        return multiply(hidden, packed, bias, "none", [], "")  # type: ignore[no-any-return]

    return apply


def _turned(heads: Tensor, rotary: tuple[Tensor, Tensor]) -> Tensor:
    """Heads (1, heads, T, head_dim) with their rotary positions."""
    cosine, sine = (part.unsqueeze(1) for part in rotary)
    left, right = heads.chunk(2, dim=-1)
    return heads * cosine + torch.cat((-right, left), dim=-1) * sine


class PlainForward:
    """Runs a pass without CUDA graphs: the network's own layers, or on a CPU their fused form."""

    returns_early = False

    def __init__(self, network: Network, store: KvCache, *, join: bool = True) -> None:
        self._network = network
        self._store = store
        self._join = join and can_join(network)
        self._joined: FusedCpuLayers | None = None
        self._scratch = Scratch(store)

    def __call__(self, work: ForwardBatch, ids: Tensor | None = None) -> Tensor:
        network = self._network
        if self._join and self._joined is None:
            self._joined = FusedCpuLayers(network)
        layers = network if self._joined is None else self._joined
        attend = PagedAttention(work, self._store, self._scratch, network.dtype)
        hidden = network.embed(self._on(work.ids) if ids is None else ids)
        rotary = network.rotary(hidden, self._on(work.positions))
        for index in range(network.shape.layers):
            hidden = layers.layer(index, hidden, rotary, attend)
        last = self._on(work.starts[work.wanted + 1] - 1)
        hidden = network.norm(hidden[:, last]).squeeze(0)
        if self._joined is not None:
            return self._joined.logits(hidden)
        return torch.nn.functional.linear(hidden, network.head)

    def sample(self, logits: Tensor, draws: BatchSampling) -> tuple[Tensor, Tensor]:
        return sample_packed(logits, draws.on(logits.device))

    def reload(self) -> None:
        self._joined = None

    def forget(self) -> None:
        self._joined = None
        self._scratch = Scratch(self._store)

    def _on(self, values: "np.ndarray[tuple[int, ...], np.dtype[np.int32]]") -> Tensor:
        return torch.from_numpy(values).to(self._network.device, torch.int64)


NARROW = (torch.bfloat16, torch.float16)
"""Types that the kernels of graphs take."""
HEADS = (16, 32, 64, 128, 256)
"""Sizes of a head that they take: tiles are powers of two."""


CAPABILITY = (8, 0)
"""Of the first devices that they run on."""


def select_forward(network: Network, store: KvCache, section: EngineConfig) -> Forward:
    """The fastest that can serve this network and store; ConfigError where it cannot run."""
    fits = network.dtype in NARROW and network.shape.head_dim in HEADS
    is_fast = network.device.type == "cuda" and _capability(network.device) >= CAPABILITY
    if is_fast and fits and store.block_tokens == BLOCK_TOKENS:
        try:
            try_out(network.shape, network.dtype, network.device)
        except RuntimeError as error:
            # Now, and not in every pass of a run.
            message = f"the engine's kernels cannot run on {network.device}: {error}"
            raise ConfigError(message) from error
        return GraphForward(network, store, graphs=section.graphs)
    return PlainForward(network, store)


def _capability(device: torch.device) -> tuple[int, int]:
    found: tuple[int, int] = torch.cuda.get_device_capability(device)
    return found
