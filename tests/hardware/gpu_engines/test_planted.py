"""The weights that SGLang is judged by on a GPU tell apart what has to be told apart."""

import random
from copy import deepcopy

import pytest
import torch
from tests.contracts import controllable_engine as steered
from tests.hardware.gpu_engines.planted import planted
from tests.hardware.gpu_engines.server import NEAR

from gyre.model.network import Network


@pytest.fixture(scope="module")
def networks():
    return [as_float(planted(seed)) for seed in (1, 2)]


def as_float(network):
    return Network(deepcopy(network.module).float())


def greedy(network, prompt, count):
    ids, leads = [], []
    for _ in range(count):
        given = torch.tensor([*prompt, *ids])
        with torch.inference_mode():
            states = network.hidden(given, torch.arange(len(given)), steered.attend)
            best = (network.head @ states[-1]).topk(2)
        leads.append(float(best.values[0] - best.values[1]))
        ids.append(int(best.indices[0]))
    return ids, leads


def apart(one, other):
    return max(abs(a - b) for a, b in zip(one, other, strict=True))


def test_half_precision_is_near_enough_and_the_other_set_is_far(networks):
    first, second = networks
    prompt = random.Random("any").choices(range(256), k=24)
    ids, leads = greedy(first, prompt, 20)
    wanted = steered.reference(first, prompt, ids)
    rounded = steered.reference(Network(deepcopy(first.module).bfloat16()), prompt, ids)

    assert min(leads) > 2 * NEAR
    assert apart(wanted, rounded) < NEAR
    assert apart(wanted, steered.reference(second, prompt, ids)) > 10 * NEAR


def test_keys_and_values_of_the_other_set_would_show(networks):
    first, second = networks
    prompt = random.Random("any").choices(range(256), k=24)
    ids, _ = greedy(second, prompt, 16)
    stale = as_float(second)
    old = dict(first.module.named_parameters())
    with torch.no_grad():
        for name, one in stale.module.named_parameters():
            if "k_proj" in name or "v_proj" in name:
                one.copy_(old[name])

    assert (
        apart(steered.reference(second, prompt, ids), steered.reference(stale, prompt, ids))
        > 2 * NEAR
    )
