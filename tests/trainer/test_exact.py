"""Sums of whole numbers: rounded once, exact in any order, refused before they could wrap."""

from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.trainer.support.scenes import NUM_EXECUTIONS, a_scene, a_trainer
from tests.waiting import PATIENCE_S
from torch import nn
from torch.distributed import HashStore

from gyre.trainer.distributed.rank_comm import RankComm, RankPosition
from gyre.trainer.gradients import CELL_LIMIT, TOTAL_LIMIT, UNIT, GradientSums, as_floats
from gyre.types.errors import CellError, NotFinite

MOST = CELL_LIMIT * UNIT
VALUES = st.floats(-MOST / 64, MOST / 64, width=32)


def some(count=3, dtype=torch.float32):
    one = nn.Parameter(torch.zeros(count, dtype=dtype))
    return one, GradientSums({"one": one}, exact=True)


def give(parameter, values):
    """As a backward pass would."""
    (parameter * torch.tensor(values, dtype=parameter.dtype)).sum().backward()


def held(sums):
    return [flat.tolist() for flat in sums.flats]


@pytest.fixture(scope="module")
def scene():
    return a_scene("llama")


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.tuples(VALUES, VALUES, VALUES), min_size=1, max_size=20),
    st.randoms(use_true_random=False),
)
def test_any_order_and_any_split_gives_the_rounded_values_added_up(given, random):
    parameter, sums = some()
    for values in given:
        give(parameter, values)
    expected = [
        sum(round(Fraction(one) / Fraction(UNIT)) for one in column)
        for column in zip(*given, strict=True)
    ]

    assert [expected] == held(sums)
    shuffled = random.sample(given, len(given))
    at = random.randint(0, len(given))
    parts = [some(), some()]
    for (one, _), part in zip(parts, (shuffled[:at], shuffled[at:]), strict=True):
        for values in part:
            give(one, values)
    parts[0][1].add(parts[1][1].flats)
    assert [expected] == held(parts[0][1])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_every_type_of_gradient_is_taken_as_it_is(dtype):
    parameter, sums = some(dtype=dtype)
    give(parameter, [0.5, -(2.0**-20), 100.0])

    assert [[2**43, -(2**24), 100 * 2**44]] == held(sums)


def test_what_is_read_is_the_sum_rounded_once():
    big = torch.tensor([2**40 + 1, -(2**54) + 3, 7])
    small = torch.tensor([5])
    found = [one.tolist() for one in as_floats([big, small], torch.float32)]

    assert [[2.0**-4, -1024.0, 7 * UNIT], [5 * UNIT]] == found


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), MOST, -2 * MOST])
@pytest.mark.parametrize("is_first", [True, False])
def test_what_is_no_sum_is_refused_by_name_and_put_back(value, is_first):
    parameter, sums = some()
    if not is_first:
        give(parameter, [1.0, 2.0, 3.0])
    before = held(sums)

    def claim():
        with sums.claim():
            give(parameter, [1.0, 1.0, 1.0])
            give(parameter, [0.0, value, 0.0])
            give(parameter, [1.0, 1.0, 1.0])

    with pytest.raises(NotFinite, match=r"the gradient of one: .* where 1024 is the most"):
        claim()
    assert before == held(sums)
    with sums.claim():
        give(parameter, [1.0, 0.0, 0.0])
    assert before[0][0] + 2**44 == held(sums)[0][0]


def test_a_sum_outside_of_claims_is_refused_to_whoever_asks_until_it_is_cleared():
    parameter, sums = some()
    give(parameter, [0.0, float("nan"), 0.0])
    for asked in (lambda: sums.flats, lambda: sums.views, sums.floats, sums.check):
        with pytest.raises(NotFinite):
            asked()
    sums.clear()

    assert [[0, 0, 0]] == held(sums)


def test_many_small_gradients_are_stopped_before_they_wrap():
    """Their values are far below the limit, their sum is not."""
    parameter, sums = some()

    def claim():
        with sums.claim():
            for _ in range(40):
                give(parameter, [MOST / 32, 0.0, 0.0])

    with pytest.raises(NotFinite):
        claim()

    assert [[0, 0, 0]] == held(sums)


def test_256_cells_at_their_limit_do_not_wrap():
    parameter, sums = some(1)
    give(parameter, [MOST * (1 - 2**-20)])
    (mine,) = held(sums)[0]
    total = torch.tensor([mine])
    for _ in range(255):
        total.add_(sums.flats[0])

    assert 256 * mine == int(total)
    sums.replace([total])
    assert [[256 * mine]] == held(sums)


def test_a_sum_over_cells_that_could_have_wrapped_is_refused():
    parameter, sums = some(2)
    give(parameter, [1.0, 2.0])
    before = held(sums)
    beyond = torch.tensor([0, -int(TOTAL_LIMIT)])
    for refused in (sums.add, sums.replace):
        with pytest.raises(NotFinite, match="over cells"):
            refused([beyond])

    assert before == held(sums)
    assert [before[0][0], before[0][1] - 2**61] == (sums.add([beyond // 2]), held(sums))[1][0]


@pytest.mark.parametrize("deterministic", [True, False])
def test_sums_of_the_other_kind_or_another_model_are_refused(scene, deterministic):
    one = a_trainer(scene, deterministic=deterministic)
    other = a_trainer(scene, deterministic=not deterministic)
    before = [flat.clone() for flat in one.gradients]
    for refused in (one.add_gradients, one.replace_gradients):
        with pytest.raises(CellError, match="deterministic mode is for all or none"):
            refused(other.gradients)
        with pytest.raises(CellError, match="another model"):
            refused([torch.zeros(3)])

    assert all(map(torch.equal, before, one.gradients))


@pytest.mark.parametrize("deterministic", [True, False])
def test_a_sum_that_took_the_place_of_another_is_the_one_that_steps(scene, deterministic):
    core, satellite, plain = (a_trainer(scene, deterministic=deterministic) for _ in range(3))
    first, *rest = scene.claims(pack_tokens=24)
    core.train(first, num_executions=NUM_EXECUTIONS)
    for claim in rest:
        for trainer in (satellite, plain):
            trainer.train(claim, num_executions=NUM_EXECUTIONS)
    core.replace_gradients([flat.clone() for flat in satellite.gradients])

    assert plain.step().gradient_norm == core.step().gradient_norm > 0
    assert 0.0 == core.step().gradient_norm


def test_a_gradient_beyond_all_sums_stops_the_claim_and_leaves_the_trainer(scene):
    trainer = a_trainer(scene, deterministic=True)
    first, second = (
        claim for one in scene.executions[:2] for claim in scene.claims([one], pack_tokens=1000)
    )
    trainer.train(first, num_executions=NUM_EXECUTIONS)
    before = [flat.clone() for flat in trainer.gradients]
    weight = trainer.network.layers[1].mlp.up_proj.weight
    hook = weight.register_hook(lambda gradient: gradient * 1e9)
    with pytest.raises(NotFinite, match=r"layers\.1\.mlp\.up_proj\.weight"):
        trainer.train(second, num_executions=NUM_EXECUTIONS)
    hook.remove()

    assert all(map(torch.equal, before, trainer.gradients))
    assert trainer.step().gradient_norm > 0


def test_cells_that_reduce_over_a_network_get_the_exact_sum(scene):
    claims = scene.claims(pack_tokens=24)
    store = HashStore()

    def cell(rank):
        trainer = a_trainer(scene, deterministic=True)
        place = RankPosition.of(rank, stages=1, shards=2)
        lines = RankComm(store, place, device=torch.device("cpu"), timeout_s=PATIENCE_S)
        for claim in claims[rank::2]:
            trainer.train(claim, num_executions=NUM_EXECUTIONS)
        scratch = [lines.within.add_up(flat.clone()) for flat in trainer.gradients]
        trainer.replace_gradients(scratch)
        return trainer

    with ThreadPoolExecutor(2) as pool:
        cells = list(pool.map(cell, range(2)))
    alone = a_trainer(scene, deterministic=True)
    for claim in claims:
        alone.train(claim, num_executions=NUM_EXECUTIONS)

    for trainer in cells:
        assert all(map(torch.equal, alone.gradients, trainer.gradients))
