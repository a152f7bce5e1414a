"""The forward pass of a pack: log-probabilities of its targets, with or without a way back."""

import numpy as np
import torch
from torch import Tensor

from gyre.model.attention import attention_for
from gyre.model.network import Network
from gyre.model.packed_batch import PackedBatch, check, packed
from gyre.trainer.activation_checkpointing import ActivationCheckpointing, hidden_states
from gyre.trainer.logprobs import logprobs
from gyre.types.errors import CellError
from gyre.types.packs import Claim, Pack

CUDA_MULTIPLE_TOKENS = 512
"""Packs are padded to this on CUDA, because attention's tiles there have such sizes."""


def target_logprobs(
    network: Network,
    packed: PackedBatch,
    *,
    recompute: ActivationCheckpointing,
    logits_tokens: int,
    temperature: float,
) -> Tensor:
    """log pi of each target of the pack; a graph hangs on it while gradients are enabled."""
    attend = attention_for(packed, network.dtype)
    hidden = hidden_states(network, packed.ids, packed.positions, attend, recompute)
    return logprobs(
        hidden,
        network.head,
        packed.predictors,
        packed.labels,
        chunk_targets=logits_tokens,
        temperature=temperature,
    )


def on_device(pack: Pack, device: torch.device) -> PackedBatch:
    """The pack where the network is, padded as attention wants it there."""
    return packed(pack, device, multiple=CUDA_MULTIPLE_TOKENS if device.type == "cuda" else 1)


def check_claim(claim: Claim, network: Network) -> None:
    """Refused by name before anything is computed, unless every target is in and can be."""
    counts = np.zeros(len(claim.shares), np.int64)
    for pack in claim.packs:
        check(pack, network.shape)
        beyond = (pack.shares < 0) | (pack.shares >= len(counts))
        if beyond.any():
            found = f"a target of share {pack.shares[beyond][0]}, and the claim has {len(counts)}"
            raise CellError(f"cannot train on this claim: {found}", retryable=False)
        counts += np.bincount(pack.shares, minlength=len(counts))
    for share, count in zip(claim.shares, counts, strict=True):
        if count != share.num_targets:
            found = f"{count} of the {share.num_targets} targets of {share.execution}"
            raise CellError(f"cannot train on this claim: it holds {found}", retryable=False)
