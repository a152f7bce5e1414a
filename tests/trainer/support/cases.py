"""Small networks and claims for the ranks of a cell, and one slow pass over all of it."""

import math

import numpy as np
import torch
from torch import nn
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from gyre.config.sections import LossConfig, OptimizerConfig
from gyre.model.network import Network
from gyre.types.ids import ExecutionId
from gyre.types.training import Claim, Pack, Score, Share

NUM_EXECUTIONS = 8
SECTION = LossConfig()
OPTIMIZER = OptimizerConfig(lr=1e-5, eps=1e-6)
"""An eps at which rounding of tiny gradients does not become a whole step."""
SIZES = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}
FAMILIES = {
    "llama": (LlamaForCausalLM, LlamaConfig, {"attention_bias": True, "mlp_bias": True}),
    "qwen2": (Qwen2ForCausalLM, Qwen2Config, {"tie_word_embeddings": True}),
    "qwen3": (Qwen3ForCausalLM, Qwen3Config, {"head_dim": 16}),
}


def network(family, **changes):
    """In float64 throughout, with weights that leave nothing at zero or one."""
    kind, config, special = FAMILIES[family.removesuffix("-tied")]
    if family.endswith("-tied"):
        special = special | {"tie_word_embeddings": True}
    module = kind(config(**(SIZES | special | changes))).double()
    generator = torch.Generator().manual_seed(7)
    for name, inner in list(module.named_modules()):
        if "RMSNorm" in type(inner).__name__:
            # The models' own norms compute in float32, which would hide errors up to 1e-7.
            exact = nn.RMSNorm(len(inner.weight), inner.variance_epsilon, dtype=torch.float64)
            module.set_submodule(name, exact)
    with torch.no_grad():
        for name, one in module.named_parameters():
            noise = torch.randn(one.shape, generator=generator, dtype=torch.float64)
            one.copy_(noise * 0.2 + (1.0 if "norm" in name else 0.0))
    return Network(module)


TREES = [
    [14] * 14,
    [3, 3, 3, 8, 8, 8, 8, 8],
    [11, 11, 11, 7, 7, 6, 7, 11, 9, 11, 11],
    [2, 2],
    [17, 17, 9, 9, 9, 7, 7, 9, 9, 17, 12, 12, 17, 17, 15, 17, 17],
]
"""`tout` of packs of unlike lengths: one row, rows, trees."""
ADVANTAGES = [1.25, -0.5, 0.75, -2.0]
DRIFT = [0.001, -0.002, 0.02, -0.03]
"""Log-ratio of each share: two within the clip bounds, two beyond them."""


def claim(model, seed=5):
    """Four executions over five packs; what sampled them is near to what the model says."""
    rng = np.random.default_rng(seed)
    drawn = [_drawn(rng, tout) for tout in TREES]
    counts = np.bincount(np.concatenate([one["shares"] for one in drawn]), minlength=4)
    packs = []
    for one in drawn:
        bare = Pack(behaviour=np.zeros(len(one["labels"]), np.float32), **one)
        with torch.no_grad():
            now = logprobs(model, bare).numpy()
        noise = rng.normal(0, 1e-3, len(now)) - np.array(DRIFT)[one["shares"]]
        packs.append(Pack(behaviour=(now + noise).astype(np.float32), **one))
    shares = tuple(
        Share(
            execution=ExecutionId(f"e{seed}.{index}"), advantage=advantage, num_targets=int(count)
        )
        for index, (advantage, count) in enumerate(zip(ADVANTAGES, counts, strict=True))
    )
    return Claim(shares=shares, packs=tuple(packs))


def _drawn(rng, tout):
    count, targets = len(tout), 2 * len(tout) // 3
    index = np.arange(count)
    seen = (index[:, None] < np.array(tout)) & (index <= index[:, None])
    return {
        "ids": rng.integers(0, 61, count, dtype=np.int32),
        "positions": (seen.sum(1) - 1).astype(np.int32),
        "tout": np.array(tout, np.int32),
        "predictors": rng.integers(0, count, targets, dtype=np.int32),
        "labels": rng.integers(0, 61, targets, dtype=np.int32),
        "shares": rng.integers(0, 4, targets, dtype=np.int32),
    }


def logprobs(model, pack):
    """Of every label, by a softmax over the whole vocabulary and a dense mask."""
    index = torch.arange(len(pack.tout))
    seen = (index[:, None] < torch.tensor(pack.tout)) & (index <= index[:, None])

    def attend(layer, query, key, value, scale):
        group = query.shape[1] // key.shape[1]
        key, value = (one.repeat_interleave(group, dim=1) for one in (key, value))
        scores = (query @ key.transpose(2, 3) * scale).masked_fill(~seen, -math.inf)
        return (scores.softmax(-1) @ value).transpose(1, 2)

    ids, positions = (torch.tensor(one, dtype=torch.long) for one in (pack.ids, pack.positions))
    logits = model.hidden(ids, positions, attend) @ model.head.T
    table = logits.log_softmax(-1)
    return table[torch.tensor(pack.predictors).long(), torch.tensor(pack.labels).long()]


def sequential(model, given):
    """Loss, scores and gradients of a claim, with everything written out (SPEC 8.2)."""
    found = [logprobs(model, pack) for pack in given.packs]
    sums, counts = [0.0] * len(given.shares), [0] * len(given.shares)
    for pack, values in zip(given.packs, found, strict=True):
        for target, owner in enumerate(pack.shares):
            sums[owner] += values[target].item() - float(pack.behaviour[target])
            counts[owner] += 1
    loss = torch.zeros((), dtype=torch.float64)
    for pack, values in zip(given.packs, found, strict=True):
        for target, owner in enumerate(pack.shares):
            share = given.shares[owner]
            mean = math.exp(sums[owner] / counts[owner])
            if (share.advantage > 0 and mean > 1.005) or (share.advantage < 0 and mean < 0.995):
                continue
            ratio = math.exp(values[target].item() - float(pack.behaviour[target]))
            token = -min(ratio, 5.0) * share.advantage * values[target]
            loss = loss + token.clamp(max=100.0) / (share.num_targets * NUM_EXECUTIONS)
    loss.backward()
    gradients = {name: one.grad for name, one in model.module.named_parameters()}
    scores = tuple(Score(sum_log_ratio=one, count=n) for one, n in zip(sums, counts, strict=True))
    return loss.item(), scores, gradients
