"""Target log-probabilities without materialising logits.

Log-probabilities of targets from hidden states, without ever holding all logits.

T tokens, M targets, V vocabulary, H hidden, C targets of a chunk.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gyre.model.attention import attention_for
from gyre.model.network import Network
from gyre.model.packed_batch import PackedBatch, check, packed
from gyre.trainer.activation_checkpointing import ActivationCheckpointing, hidden_states
from gyre.types.errors import CellError
from gyre.types.training import Claim, Pack


def logprobs(
    hidden_TH: Tensor,
    head_VH: Tensor,
    predictors_M: Tensor,
    labels_M: Tensor,
    *,
    chunk_targets: int,
    temperature: float = 1.0,
) -> Tensor:
    """log pi of each label after its predictor, M values in float32 (float64 for a float64 model).

    `temperature` is the one the labels were sampled under, so that both sides of a ratio mean the
    same distribution. Gradients reach hidden states and head; a target whose gradient is zero
    costs nothing on the way back.
    """
    found: Tensor = _Logprobs.apply(  # type: ignore[no-untyped-call]
        hidden_TH, head_VH, predictors_M, labels_M, chunk_targets, temperature
    )
    return found


class _Logprobs(torch.autograd.Function):
    """Saves hidden states, head and one log-sum-exp per target; logits are computed twice.

    Beyond what is saved, memory peaks at the logits of one chunk, C x V, with one temporary of
    the same size, and in the backward pass at the wide sum of the head's gradient, V x H.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden_TH: Tensor,
        head_VH: Tensor,
        predictors_M: Tensor,
        labels_M: Tensor,
        chunk_targets: int,
        temperature: float,
    ) -> Tensor:
        product = _Product(head_VH)
        lse_M = hidden_TH.new_empty(len(labels_M), dtype=product.wide)
        chosen_M = torch.empty_like(lse_M)
        for part in _chunks(len(labels_M), chunk_targets):
            logits_CV = product.logits(hidden_TH[predictors_M[part]], temperature)
            lse_M[part] = product.log_sum_exp(logits_CV)
            chosen_M[part] = logits_CV.gather(1, labels_M[part, None]).squeeze(1)
        ctx.save_for_backward(hidden_TH, head_VH, predictors_M, labels_M, lse_M)
        ctx.chunk_targets, ctx.temperature = chunk_targets, temperature
        return chosen_M - lse_M

    @staticmethod
    def backward(ctx: Any, grad_M: Tensor) -> tuple[Tensor | None, ...]:
        hidden_TH, head_VH, predictors_M, labels_M, lse_M = ctx.saved_tensors
        product = _Product(head_VH)
        of_hidden_TH = torch.zeros_like(hidden_TH, dtype=product.wide)
        of_head_VH = torch.zeros_like(head_VH, dtype=product.wide)
        live = grad_M.nonzero().squeeze(1)
        for part in _chunks(len(live), ctx.chunk_targets):
            at = live[part]
            hidden_CH = hidden_TH[predictors_M[at]]
            logits_CV = product.logits(hidden_CH, ctx.temperature)
            scale_C = grad_M[at].to(product.wide) / ctx.temperature
            of_logits_CV = product.of_logits(logits_CV, lse_M[at], labels_M[at], scale_C)
            of_hidden_TH.index_add_(0, predictors_M[at], product.of_hidden(of_logits_CV))
            of_head_VH += product.of_head(of_logits_CV, hidden_CH)
        return (
            of_hidden_TH.to(hidden_TH.dtype),
            of_head_VH.to(head_VH.dtype),
            None,
            None,
            None,
            None,
        )


class _Product:
    """Multiplication with the head that keeps sums wide: bf16 logits would be off by whole bits.

    CUDA multiplies narrow matrices into a wide result; elsewhere the head is widened once.
    """

    def __init__(self, head_VH: Tensor) -> None:
        self.wide = torch.float64 if head_VH.dtype == torch.float64 else torch.float32
        self._narrow = head_VH.dtype != self.wide and head_VH.is_cuda
        self._head_VH = head_VH if self._narrow else head_VH.to(self.wide)

    def logits(self, hidden_CH: Tensor, temperature: float) -> Tensor:
        logits_CV = self._times(hidden_CH, self._head_VH.t())
        return logits_CV if temperature == 1.0 else logits_CV.div_(temperature)

    def log_sum_exp(self, logits_CV: Tensor) -> Tensor:
        if self._narrow:
            return _fused(_log_sum_exp)(logits_CV)  # type: ignore[no-any-return]
        return torch.logsumexp(logits_CV, dim=-1)

    def of_logits(
        self, logits_CV: Tensor, lse_C: Tensor, labels_C: Tensor, scale_C: Tensor
    ) -> Tensor:
        """d log p / d logits = (1 for the label) - p, times the scale; takes the logits' place."""
        if self._narrow:
            return _fused(_narrow_gradient)(  # type: ignore[no-any-return]
                logits_CV, lse_C, labels_C, scale_C, self._head_VH.dtype
            )
        of_logits_CV = logits_CV.sub_(lse_C[:, None]).exp_().mul_(-scale_C[:, None])
        return of_logits_CV.scatter_add_(1, labels_C[:, None], scale_C[:, None])

    def of_hidden(self, of_logits_CV: Tensor) -> Tensor:
        return self._times(of_logits_CV, self._head_VH)

    def of_head(self, of_logits_CV: Tensor, hidden_CH: Tensor) -> Tensor:
        return self._times(of_logits_CV.t(), hidden_CH)

    def _times(self, one: Tensor, two: Tensor) -> Tensor:
        kind = self._head_VH.dtype
        if self._narrow:
            return torch.mm(one.to(kind), two.to(kind), out_dtype=self.wide)
        return one.to(kind) @ two.to(kind)


@cache
def _fused(work: Callable[..., Tensor]) -> Any:
    """One kernel instead of one per operation: on a GPU these are bound by memory."""
    return torch.compile(work, dynamic=True)


def _log_sum_exp(logits_CV: Tensor) -> Tensor:
    return torch.logsumexp(logits_CV, dim=-1)


def _narrow_gradient(
    logits_CV: Tensor, lse_C: Tensor, labels_C: Tensor, scale_C: Tensor, dtype: torch.dtype
) -> Tensor:
    chosen_CV = torch.arange(logits_CV.shape[1], device=logits_CV.device) == labels_C[:, None]
    share_CV = chosen_CV.to(logits_CV.dtype) - torch.exp(logits_CV - lse_C[:, None])
    return (share_CV * scale_C[:, None]).to(dtype)


def _chunks(count: int, size: int) -> list[slice]:
    return [slice(begin, min(begin + size, count)) for begin in range(0, count, size)]


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
