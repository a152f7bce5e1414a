"""Adam on wide masters, against torch.optim.AdamW."""

from dataclasses import replace

import pytest
import safetensors.torch
import torch
from torch import nn

from gyre.config.sections import OptimizerConfig
from gyre.trainer.optimizer import Adam, OptimizerState, norm
from gyre.types.errors import ModelError

SECTION = OptimizerConfig(lr=1e-2, weight_decay=0.1)
SHAPES = {"a": (3, 4), "b": (5,), "c": (2, 2, 2)}


def parameters(dtype, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return {
        name: nn.Parameter(torch.randn(shape, generator=generator).to(dtype))
        for name, shape in SHAPES.items()
    }


def gradients(step, dtype=torch.float32):
    generator = torch.Generator().manual_seed(100 + step)
    return {
        name: torch.randn(shape, generator=generator).to(dtype) for name, shape in SHAPES.items()
    }


def flat(named):
    return [torch.cat([one.reshape(-1) for one in named.values()])]


def reference(held, section=SECTION):
    return torch.optim.AdamW(
        held.values(),
        lr=section.lr,
        betas=(section.beta1, section.beta2),
        eps=section.eps,
        weight_decay=section.weight_decay,
        foreach=False,
        fused=False,
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_steps_are_those_of_torch_to_the_last_bit(dtype):
    ours, theirs = parameters(dtype), parameters(dtype)
    adam, other = Adam(ours, SECTION), reference(theirs)
    for step in range(5):
        adam.step(flat(gradients(step, dtype)))
        for name, one in gradients(step, dtype).items():
            theirs[name].grad = one
        other.step()
        for name, one in theirs.items():
            assert torch.equal(one, ours[name])


def test_a_scale_is_a_scaled_gradient():
    ours, theirs = parameters(torch.float64), parameters(torch.float64)
    scaled = [one * 0.25 for one in flat(gradients(0, torch.float64))]
    Adam(ours, SECTION).step(flat(gradients(0, torch.float64)), scale=0.25)
    Adam(theirs, SECTION).step(scaled)

    assert all(torch.equal(one, theirs[name]) for name, one in ours.items())


def test_narrow_parameters_are_rounded_masters_and_small_steps_add_up():
    """Thirty steps of 1e-4 on bf16 alone would leave a weight near one where it was."""
    held = {"a": nn.Parameter(torch.ones(4, dtype=torch.bfloat16))}
    adam = Adam(held, OptimizerConfig(lr=1e-4, weight_decay=0.0))
    values = []
    for _ in range(30):
        adam.step([torch.ones(4)])
        assert torch.equal(held["a"], adam.masters["a"].bfloat16())
        values.append(held["a"][0].item())

    assert 1.0 == values[0]
    assert values[-1] < 1.0
    assert torch.float32 == adam.masters["a"].dtype


def test_the_norm_is_over_all_buckets_and_does_not_overflow():
    big = [torch.full((2,), 3e30), torch.full((3,), 4e30)]

    assert (2 * 9 + 3 * 16) ** 0.5 * 1e30 == pytest.approx(norm(big), rel=1e-6)
    assert norm([torch.tensor([1.0, float("nan")])]) != norm([torch.tensor([1.0])])


def test_a_state_read_back_from_bytes_goes_on_to_the_same_weights():
    held = parameters(torch.float32)
    adam = Adam(held, SECTION)
    adam.step(flat(gradients(0)))
    state = adam.export()
    stored = safetensors.torch.load(safetensors.torch.save(dict(state.tensors)))
    other_held = parameters(torch.float32, seed=9)
    other = Adam(other_held, SECTION)
    other.load(OptimizerState(num_steps=state.num_steps, tensors=stored))

    assert all(torch.equal(one, other_held[name]) for name, one in held.items())
    adam.step(flat(gradients(1)))
    other.step(flat(gradients(1)))
    assert all(torch.equal(one, other_held[name]) for name, one in held.items())


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("first_moment/a", None, "1 names missing, 0 unknown"),
        ("first_moment/d", torch.zeros(1), "'first_moment/d'"),
        ("master/b", torch.zeros(6), r"shape \(6,\) where \(5,\)"),
        ("master/b", torch.full((5,), float("nan")), "no numbers"),
    ],
)
def test_a_state_of_another_model_is_refused_and_changes_nothing(name, value, said):
    held = parameters(torch.float32)
    adam = Adam(held, SECTION)
    adam.step(flat(gradients(0)))
    before = {key: one.clone() for key, one in adam.export().tensors.items()}
    wrong = {key: torch.zeros_like(one) for key, one in before.items()}
    wrong |= {name: value}
    state = OptimizerState(
        num_steps=7, tensors={key: one for key, one in wrong.items() if one is not None}
    )
    with pytest.raises(ModelError, match=said):
        adam.load(state)

    assert 1 == adam.num_steps
    assert all(torch.equal(one, before[key]) for key, one in adam.export().tensors.items())


def test_a_constant_learning_rate_of_zero_changes_nothing():
    held, before = parameters(torch.float32), parameters(torch.float32)
    Adam(held, replace(SECTION, lr=0.0)).step(flat(gradients(0)))

    assert all(torch.equal(one, before[name]) for name, one in held.items())
