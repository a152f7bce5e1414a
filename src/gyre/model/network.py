"""A causal language model of transformers as layers whose attention is handed in with each call."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel

IMPLEMENTATION = "gyre"
"""Name under which transformers finds our attention; without a mask function no mask is made."""


class Attend(Protocol):
    """Attention over what one pass sees: a pack, or a batch of calls with their caches."""

    def __call__(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float
    ) -> Tensor:
        """Queries (1, heads, T, d), keys and values (1, kv_heads, T, d) to (1, T, heads, d)."""
        ...


def _attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float,
    attend: Attend,
    **_: Any,
) -> tuple[Tensor, None]:
    return attend(module.layer_idx, query, key, value, scaling), None


AttentionInterface.register(IMPLEMENTATION, _attention)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelDims:
    """Layers, heads and widths of a model, from which memory and arithmetic follow."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    context: int
    """Most tokens a path may have."""
    parameters: int
    """All of them; a tied head counts once."""
    layer_parameters: int
    """Those of the decoder layers, which every token passes."""

    @property
    def kv_values_per_token(self) -> int:
        """Keys and values of one token over all layers."""
        return 2 * self.layers * self.kv_heads * self.head_dim

    def forward_flops(self, num_tokens: int, num_outputs: int, num_pairs: int) -> float:
        """Of one forward pass: matrices per token, head per output, attention per visible pair."""
        attention = 4.0 * self.layers * self.heads * self.head_dim * num_pairs
        head = 2.0 * self.vocabulary * self.hidden * num_outputs
        return 2.0 * self.layer_parameters * num_tokens + head + attention


class Network:
    """Embedding, decoder layers, last norm and head of one model; `attend` is given per call."""

    def __init__(self, module: PreTrainedModel) -> None:
        module.set_attn_implementation(IMPLEMENTATION)
        self.module = module
        self.decoder: Any = module.model
        self.shape = _shape(module)

    @property
    def layers(self) -> Sequence[nn.Module]:
        return self.decoder.layers  # type: ignore[no-any-return]

    @property
    def head(self) -> Tensor:
        """The output matrix (vocabulary, hidden)."""
        module: Any = self.module
        return module.get_output_embeddings().weight  # type: ignore[no-any-return]

    @property
    def device(self) -> torch.device:
        return self.head.device

    @property
    def dtype(self) -> torch.dtype:
        return self.head.dtype

    def embed(self, ids: Tensor) -> Tensor:
        """Ids (T) to (1, T, hidden)."""
        return self.decoder.embed_tokens(ids.unsqueeze(0))  # type: ignore[no-any-return]

    def rotary(self, hidden: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines of positions (T), in the type of `hidden`."""
        return self.decoder.rotary_emb(hidden, positions.unsqueeze(0))  # type: ignore[no-any-return]

    def layer(
        self, index: int, hidden: Tensor, rotary: tuple[Tensor, Tensor], attend: Attend
    ) -> Tensor:
        """One decoder layer over (1, T, hidden)."""
        return self.layers[index](  # type: ignore[no-any-return]
            hidden, attention_mask=None, position_embeddings=rotary, attend=attend
        )

    def norm(self, hidden: Tensor) -> Tensor:
        return self.decoder.norm(hidden)  # type: ignore[no-any-return]

    def hidden(self, ids: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """Ids and positions (T) to the last normed states (T, hidden)."""
        state = self.embed(ids)
        rotary = self.rotary(state, positions)
        for index in range(len(self.layers)):
            state = self.layer(index, state, rotary, attend)
        return self.norm(state).squeeze(0)


def _shape(module: Any) -> ModelDims:
    config: Any = module.config
    heads = config.num_attention_heads
    return ModelDims(
        layers=config.num_hidden_layers,
        hidden=config.hidden_size,
        heads=heads,
        kv_heads=getattr(config, "num_key_value_heads", None) or heads,
        head_dim=getattr(config, "head_dim", None) or config.hidden_size // heads,
        vocabulary=config.vocab_size,
        context=config.max_position_embeddings,
        parameters=sum(one.numel() for one in module.parameters()),
        layer_parameters=sum(one.numel() for one in module.model.layers.parameters()),
    )
