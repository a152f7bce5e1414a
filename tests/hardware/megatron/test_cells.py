"""Cells whose layers are Megatron's compute what one process does with those of transformers."""

import pytest
from tests.controller.support.forked_cells import fork_clients
from tests.trainer.support import cases
from tests.trainer.support.cells import Cell, parts, worst

from gyre.config.sections import TrainerConfig
from gyre.trainer.trainer import Trainer

pytestmark = pytest.mark.megatron
FAMILIES = ["qwen3", "qwen3-tied", "qwen2"]
TWO = [f"train:{layout}:{family}" for layout in ("2x1", "1x2") for family in FAMILIES]
FOUR = [f"train:2x2:{family}" for family in FAMILIES]
STEPPED = {2: ["step:2x1:qwen3", "step:1x2:qwen2", "rest:1x2:qwen3"], 4: ["step:2x2:qwen3-tied"]}
LOST = ["lose:2x1:dies"]
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
ranks_are_forked = fork_clients("tests.hardware.megatron.cell_rank")

trained = pytest.mark.parametrize("plan", [one.replace(":", "-") for one in (*TWO, *FOUR)])


class MegatronCell(Cell):
    program = "tests.hardware.megatron.cell_rank"


@pytest.fixture(scope="module")
def cells(tmp_path_factory):
    """By how many ranks they have."""
    return {
        2: MegatronCell(tmp_path_factory.mktemp("two"), 2, [*TWO, *STEPPED[2], *LOST]),
        4: MegatronCell(tmp_path_factory.mktemp("four"), 4, [*FOUR, *STEPPED[4]]),
    }


@pytest.fixture(scope="module")
def expected():
    """Loss, scores and gradients of each family, in one process and written out."""
    found = {}
    for family in FAMILIES:
        network = cases.network(family)
        found[family] = cases.sequential(network, cases.claim(network))
    return found


def family_of(plan):
    return plan.split("-", 2)[2]


def cell_of(cells, plan):
    stages, shards = map(int, plan.split("-")[1].split("x"))
    return cells[stages * shards], shards


@trained
def test_loss_and_scores_are_those_of_one_process(cells, expected, plan):
    loss, scores, _ = expected[family_of(plan)]
    driver, *others = cell_of(cells, plan)[0].facts(plan)
    sums, counts = zip(*driver["scores"], strict=True)

    assert pytest.approx(loss, rel=1e-10) == sum(one or 0.0 for one in driver["losses"])
    assert pytest.approx([one.sum_log_ratio for one in scores], rel=1e-9, abs=1e-11) == sums
    assert tuple(one.count for one in scores) == counts
    assert [[]] * len(others) == [one["losses"] for one in others]


@trained
def test_every_gradient_is_that_of_one_process(cells, expected, plan):
    _, _, gradients = expected[family_of(plan)]
    cell, shards = cell_of(cells, plan)
    held = cell.tensors(plan)
    for rank, (facts, found) in enumerate(zip(cell.facts(plan), held, strict=True)):
        mine = parts(gradients, found, facts["dims"], rank % shards, shards)

        assert 1e-12 > worst(mine, found)
        assert all(one.any() for one in found.values())
    assert set(gradients) == set().union(*held) - ({HEAD} - set(gradients))


@trained
def test_the_norm_counts_every_parameter_once(cells, expected, plan):
    _, _, gradients = expected[family_of(plan)]
    norm = sum(one.square().sum().item() for one in gradients.values()) ** 0.5
    found = [one["norm"] for one in cell_of(cells, plan)[0].facts(plan)]

    assert [pytest.approx(norm, rel=1e-11)] * len(found) == found


@trained
def test_a_pause_keeps_what_is_in_flight_and_changes_no_bit(cells, plan):
    facts = cell_of(cells, plan)[0].facts(plan)

    assert {("PAUSED", "PAUSED", "PAUSED", "CLOSED")} == {tuple(one["ends"]) for one in facts}
    assert {True} == {one["paused_alike"] for one in facts}
    assert {0} == {one["in_flight"] for one in facts}


@trained
def test_ranks_give_and_take_a_model_under_its_own_names(cells, plan):
    """Bit by bit, so that files, engines and other cells need not know whose layers computed."""
    cell, shards = cell_of(cells, plan)
    module = cases.network(family_of(plan)).module
    found = {}
    for one in cell.tensors(f"{plan}-whole"):
        found |= one
    assert 0.0 == worst(dict(module.named_parameters()), found)

    for rank, (facts, taken) in enumerate(
        zip(cell.facts(plan), cell.tensors(f"{plan}-taken"), strict=True)
    ):
        whole = dict(module.named_parameters())
        assert 0.0 == worst(parts(whole, taken, facts["dims"], rank % shards, shards), taken)


@pytest.mark.parametrize("plan", ["step-2x1-qwen3", "step-1x2-qwen2", "step-2x2-qwen3-tied"])
def test_two_updates_are_those_of_one_device(cells, plan):
    network = cases.network(family_of(plan))
    claims = [cases.claim(network, seed) for seed in (5, 6)]
    trainer = Trainer(
        network,
        section=TrainerConfig(),
        objective=cases.SECTION,
        optimizer=cases.OPTIMIZER,
    )
    norms = []
    for _ in range(2):
        for claim in claims:
            trainer.train(claim, num_executions=cases.NUM_EXECUTIONS)
        norms.append(trainer.step().gradient_norm)
    cell, _ = cell_of(cells, plan)
    found = {}
    for one in cell.tensors(plan):
        found |= one

    for facts in cell.facts(plan):
        assert pytest.approx(norms, rel=1e-9) == facts["norms"]
    assert 1e-10 > worst(dict(network.module.named_parameters()), found)


def test_a_rest_in_a_batch_changes_nothing(cells):
    first, second = (cells[2].tensors(f"rest-1x2-qwen3-{one}") for one in ("first", "other"))

    assert 0.0 == worst(first[0], second[0])
    for facts in cells[2].facts("rest-1x2-qwen3"):
        assert [True, True] == [facts["exported"], facts["resting"][0]]


def test_the_end_of_a_rank_ends_the_cell_by_name(cells):
    """Megatron's sums go over the cell's own lines, which fail as they do without it."""
    driver, _ = cells[2].facts("lose-2x1-dies")

    assert driver["errors"]
    assert all("line " in one for one in driver["errors"])
