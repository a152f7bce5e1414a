"""The attention kernels beneath torch's own, called by name for the log-sum-exp they give and take.

Given the output and log-sum-exp over more keys than they see, the backward kernels yield the exact
share of the keys they see; so attention over a path can be computed in parts and merged.
"""

from typing import Any

import torch
from torch import Tensor

_aten: Any = torch.ops.aten


def attend(q: Tensor, k: Tensor, v: Tensor, scale: float, *, causal: bool) -> tuple[Tensor, Tensor]:
    """Outputs like q (1, heads, T, d), and the log-sum-exp (1, heads, T) of each query's scores."""
    if not q.is_cuda:
        found = _aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, causal, scale=scale)
        return found[0], found[1]
    found = _aten._scaled_dot_product_cudnn_attention(
        q, k, v, None, True, 0.0, causal, False, scale=scale
    )
    return found[0], found[1].squeeze(-1)


def merged(one: Tensor, one_lse: Tensor, two: Tensor, two_lse: Tensor) -> tuple[Tensor, Tensor]:
    """Softmax over two sets of keys from the softmax over each."""
    lse = torch.logaddexp(one_lse, two_lse)
    left, right = (torch.exp(part - lse).unsqueeze(-1) for part in (one_lse, two_lse))
    return (one * left + two * right).to(one.dtype), lse


def back(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    scale: float,
    *,
    causal: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of queries, keys and values through the keys given here."""
    lse = lse.contiguous()
    found: tuple[Tensor, Tensor, Tensor]
    if not q.is_cuda:
        found = _aten._scaled_dot_product_flash_attention_for_cpu_backward(
            grad, q, k, v, out, lse, 0.0, causal, scale=scale
        )
        return found
    seed = torch.zeros((), dtype=torch.int64, device=q.device)
    found = _aten._scaled_dot_product_cudnn_attention_backward(
        grad, q, k, v, out, lse.unsqueeze(-1), seed, seed, None, None, None,
        q.shape[2], k.shape[2], 0.0, causal, scale=scale,
    )  # fmt: skip
    return found
