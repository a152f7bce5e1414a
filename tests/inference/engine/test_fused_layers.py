"""Joined and packed layers compute what the network's own do."""

import pytest
import torch
from tests.inference.support.slow_engine import (
    VOCABULARY,
    ask,
    expected,
    loop,
    naive_attention,
    network,
    run,
    weights,
)

from gyre.inference.engine.model_runner import FusedCpuLayers, PlainForward, can_join

FAMILIES = ("llama", "qwen2", "qwen3")


def plain(network, store):
    return PlainForward(network, store, join=False)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind", FAMILIES)
@torch.inference_mode()
def test_a_layer_and_the_head_are_the_networks_own_to_rounding(kind, dtype):
    model = network(kind, dtype=dtype)
    if not can_join(model):
        # Such a CPU serves the network's own layers, and its kernels say that they cannot.
        assert torch.bfloat16 is dtype
        with pytest.raises(RuntimeError, match="cpu support"):
            FusedCpuLayers(model)
        return
    joined = FusedCpuLayers(model)
    ids = torch.arange(11) % VOCABULARY
    own = mine = model.embed(ids)
    rotary = model.rotary(own, torch.arange(11))
    for index in range(model.shape.layers):
        own = model.layer(index, own, rotary, naive_attention)
        mine = joined.layer(index, mine, rotary, naive_attention)
    own, mine = own @ model.head.T, joined.logits(mine)

    assert own.dtype == mine.dtype
    scale = float(own.abs().max())
    error = float((own - mine).abs().max()) / scale
    assert error < {torch.float32: 1e-6, torch.bfloat16: 2e-2}[dtype]


def test_only_types_that_can_be_packed_are_joined():
    assert can_join(network(dtype=torch.float32))
    assert not can_join(network(dtype=torch.float64))


@pytest.mark.parametrize("make_forward", [PlainForward, plain], ids=["joined", "plain"])
def test_new_weights_are_joined_anew(make_forward):
    model, other = network(seed=1), network(seed=2)
    engine = loop(model, make_forward=make_forward)
    asked = ask([1, 2, 3])
    before = run(engine, [asked])["a"]
    engine.load(weights(other), version=1)
    after = run(engine, [asked])["a"]

    assert expected(network(seed=1), asked).ids == before.ids
    assert expected(other, asked).ids == after.ids
    assert before.ids != after.ids


def test_in_bfloat16_both_forms_sample_nearly_the_same():
    asks = [ask([n, n + 1], str(n), temperature=0.5) for n in range(6)]
    one = run(loop(network(dtype=torch.bfloat16)), asks)
    two = run(loop(network(dtype=torch.bfloat16), make_forward=plain), asks)

    for name, answer in one.items():
        # Up to the first token that rounding decided otherwise.
        same = [a == b for a, b in zip(answer.ids, two[name].ids, strict=True)]
        until = same.index(False) if False in same else len(same)
        assert answer.logprobs[:until] == pytest.approx(two[name].logprobs[:until], abs=0.1)
        assert until > 0
