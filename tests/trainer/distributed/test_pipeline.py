"""Ranks in processes of their own compute what one process computes in sequence."""

import dataclasses

import pytest
import torch
from tests.controller.support.forked_cells import fork_clients
from tests.trainer.support import cases
from tests.trainer.support.cells import Cell, Threads, parts, worst

from gyre.config.sections import TrainerConfig
from gyre.trainer.distributed.pipeline_stage import spans
from gyre.trainer.loss import loss_and_gradient
from gyre.trainer.trainer import Trainer
from gyre.types.errors import ModelError

ranks_are_forked = fork_clients("tests.trainer.support.cell_rank")

LAYOUTS = {"2x1": (2, 1), "1x2": (1, 2)}
TRAINED = [f"train:{layout}:{family}" for layout in LAYOUTS for family in sorted(cases.FAMILIES)]
STEPPED = ["step:2x1:qwen2", "step:1x2:qwen3"]
FAILED = ["fail:2x1:nan", "fail:2x1:pack", "lose:2x1:hangs", "lose:2x1:dies"]
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"

trained = pytest.mark.parametrize("plan", [one.replace(":", "-") for one in TRAINED])


@pytest.fixture(scope="module")
def cell(tmp_path_factory):
    return Cell(tmp_path_factory.mktemp("cell"), 2, [*TRAINED, *STEPPED, *FAILED])


@pytest.fixture(scope="module")
def expected():
    """Loss, scores and gradients of each family, in one process and written out."""
    found = {}
    for family in cases.FAMILIES:
        network = cases.network(family)
        found[family] = cases.sequential(network, cases.claim(network))
    return found


def layout(plan):
    stages, shards = plan.split("-")[1].split("x")
    return int(stages), int(shards)


def gradient_norm(gradients):
    return sum(one.square().sum().item() for one in gradients.values()) ** 0.5


def check_gradients(cell, plan, gradients):
    _, shards = layout(plan)
    held = cell.tensors(plan)
    for rank, (facts, found) in enumerate(zip(cell.facts(plan), held, strict=True)):
        mine = parts(gradients, found, facts["dims"], rank % shards, shards)

        assert 1e-12 > worst(mine, found)
        assert all(one.any() for one in found.values())

    names = set().union(*held)
    assert set(gradients) == names - ({HEAD} - set(gradients))
    for name in names:
        copies = [one[name] for one in held if name in one]
        whole = not any(name in facts["dims"] for facts in cell.facts(plan))
        assert not whole or all(copies[0].equal(one) for one in copies)


@pytest.mark.slow
@trained
def test_loss_and_scores_are_those_of_one_process(cell, expected, plan):
    """L03: the scores of packs, computed apart, add up to those of the executions."""
    loss, scores, _ = expected[plan.split("-")[2]]
    driver, other = cell.facts(plan)
    sums, counts = zip(*driver["scores"], strict=True)

    assert pytest.approx(loss, rel=1e-12) == sum(one or 0.0 for one in driver["losses"])
    assert pytest.approx([one.sum_log_ratio for one in scores], rel=1e-12, abs=1e-13) == sums
    assert tuple(one.count for one in scores) == counts
    assert loss != 0.0
    assert [] == other["losses"]


@pytest.mark.slow
@trained
def test_every_gradient_is_that_of_one_process(cell, expected, plan):
    """Copies of one parameter, tied or on several shards, have equal bits."""
    _, _, gradients = expected[plan.split("-")[2]]
    check_gradients(cell, plan, gradients)


@pytest.mark.slow
def test_an_embedding_that_is_also_the_head_has_one_gradient_at_both_ends(cell):
    first, last = cell.tensors("train-2x1-qwen2")

    assert first[EMBEDDING].equal(last[HEAD])
    assert HEAD not in cell.tensors("train-2x1-qwen2-whole")[1]


@pytest.mark.slow
@trained
def test_a_pause_keeps_what_is_in_flight_and_changes_no_bit(cell, plan):
    facts = cell.facts(plan)

    assert [["PAUSED", "PAUSED", "PAUSED", "CLOSED"]] * 2 == [one["ends"] for one in facts]
    assert [True] * 2 == [one["paused_alike"] for one in facts]
    assert [0] * 2 == [one["in_flight"] for one in facts]


@pytest.mark.slow
@trained
def test_what_each_pack_shows_reaches_the_driver(cell, plan):
    network = cases.network(plan.split("-")[2])
    claim = cases.claim(network)
    _, scores, _ = cases.sequential(network, claim)
    driver, _ = cell.facts(plan)
    pairs = zip(driver["measures"], driver["losses"], strict=True)
    told = [one for one, loss in pairs if loss is not None]
    for pack, found in zip(claim.packs, told, strict=True):
        weighed = loss_and_gradient(
            cases.logprobs(network, pack),
            torch.tensor(pack.behaviour),
            torch.tensor(pack.shares),
            shares=claim.shares,
            scores=scores,
            num_executions=cases.NUM_EXECUTIONS,
            section=cases.SECTION,
        )

        assert pytest.approx(dataclasses.asdict(weighed.measures), rel=1e-9) == found


@pytest.mark.slow
@trained
def test_the_norm_counts_every_parameter_once(cell, expected, plan):
    _, _, gradients = expected[plan.split("-")[2]]
    norm = pytest.approx(gradient_norm(gradients), rel=1e-12)

    assert [norm] * 2 == [one["norm"] for one in cell.facts(plan)]


@pytest.mark.slow
@trained
def test_ranks_give_every_weight_once_and_take_their_part_of_it(cell, plan):
    whole = dict(cases.network(plan.split("-")[2]).module.named_parameters())
    given = cell.tensors(f"{plan}-whole")
    _, shards = layout(plan)

    assert sorted(whole) == sorted(name for one in given for name in one)
    assert 0.0 == worst(whole, given[0] | given[1])
    for rank, taken in enumerate(cell.tensors(f"{plan}-taken")):
        dims = cell.facts(plan)[rank]["dims"]
        assert 0.0 == worst(parts(whole, taken, dims, rank % shards, shards), taken)


@pytest.mark.slow
@pytest.mark.parametrize("plan", [one.replace(":", "-") for one in STEPPED])
def test_claims_released_by_their_scores_make_the_updates_of_one_device(cell, plan):
    network = cases.network(plan.split("-")[2])
    claims = [cases.claim(network, seed) for seed in (5, 6)]
    alone = Trainer(
        network, section=TrainerConfig(), objective=cases.SECTION, optimizer=cases.OPTIMIZER
    )
    losses, norms, measures = [], [], []
    for _ in range(2):
        reports = [alone.train(one, num_executions=cases.NUM_EXECUTIONS) for one in claims]
        losses.append(sum(one.loss for one in reports))
        measures += [dataclasses.asdict(one.measures) for one in reports]
        norms.append(alone.step().gradient_norm)
    driver, other = cell.facts(plan)
    found = cell.tensors(plan)

    assert [["PAUSED", "CLOSED"] * 2] * 2 == [one["ends"] for one in (driver, other)]
    assert pytest.approx(losses, rel=1e-11) == driver["losses"]
    assert pytest.approx(norms, rel=1e-11) == driver["norms"] == other["norms"]
    assert [pytest.approx(one, rel=1e-9) for one in measures] == driver["measures"]
    assert 1e-12 > worst(dict(network.module.named_parameters()), found[0] | found[1])
    assert norms[0] > 0.0


@pytest.mark.slow
def test_two_stages_of_two_shards_compute_what_one_process_computes(tmp_path):
    network = cases.network("qwen3-tied")
    loss, _, gradients = cases.sequential(network, cases.claim(network))
    cell = Cell(tmp_path, 4, ["train:2x2:qwen3-tied"])
    plan = "train-2x2-qwen3-tied"
    facts = cell.facts(plan)

    assert pytest.approx(loss, rel=1e-12) == sum(one or 0.0 for one in facts[0]["losses"])
    assert [pytest.approx(gradient_norm(gradients), rel=1e-12)] * 4 == [
        one["norm"] for one in facts
    ]
    check_gradients(cell, plan, gradients)


@pytest.mark.parametrize(("size", "plan"), [(3, "train:3x1:qwen2"), (2, "train:2x1:qwen3")])
def test_stages_in_threads_compute_what_one_process_computes(tmp_path, size, plan):
    network = cases.network(plan.split(":")[2])
    loss, _, gradients = cases.sequential(network, cases.claim(network))
    cell = Threads(tmp_path, size, [plan])
    facts = cell.facts(plan.replace(":", "-"))

    assert pytest.approx(loss, rel=1e-12) == sum(one or 0.0 for one in facts[0]["losses"])
    assert [["PAUSED", "PAUSED", "PAUSED", "CLOSED"]] * size == [one["ends"] for one in facts]
    check_gradients(cell, plan.replace(":", "-"), gradients)


def test_a_batch_that_stopped_is_forgotten_and_the_next_one_is_as_if_it_had_not_been(tmp_path):
    cell = Threads(tmp_path, 2, ["stop:2x1:qwen2"])
    driver, other = cell.facts("stop-2x1-qwen2")
    network = cases.network("qwen2")
    alone = Trainer(
        network, section=TrainerConfig(), objective=cases.SECTION, optimizer=cases.OPTIMIZER
    )
    for seed in (5, 6):
        alone.train(cases.claim(network, seed), num_executions=cases.NUM_EXECUTIONS)
    alone.step()
    first, last = cell.tensors("stop-2x1-qwen2")

    assert ["NotFinite"] == [one.partition(":")[0] for one in driver["errors"]]
    assert [["CLOSED"], ["CLOSED", "CLOSED"]] == [driver["ends"], other["ends"]]
    assert [1, 1] == [driver["version"], other["version"]]
    assert 1e-12 > worst(dict(network.module.named_parameters()), first | last)


@pytest.mark.slow
def test_a_loss_that_is_no_number_closes_the_batch_by_name_and_leaves_the_cell_alive(cell):
    driver, other = cell.facts("fail-2x1-nan")

    assert driver["error"].startswith("NotFinite: objective of execution e5.")
    assert [None, ["CLOSED"]] == [other["error"], other["ends"]]
    assert [["CLOSED"], ["CLOSED"]] == [driver["again"], other["again"]]
    assert len(cases.TREES) == driver["results"]


@pytest.mark.slow
def test_a_pack_that_cannot_be_closes_the_batch_by_name_and_leaves_the_cell_alive(cell):
    driver, other = cell.facts("fail-2x1-pack")

    assert driver["error"].startswith("CellError: cannot train on this pack: ids[")
    assert [None, ["CLOSED"]] == [other["error"], other["ends"]]
    assert [["CLOSED"], ["CLOSED"]] == [driver["again"], other["again"]]
    assert len(cases.TREES) == driver["results"]


@pytest.mark.slow
def test_a_rank_that_dies_is_an_error_by_name_and_stays_one(cell):
    first, second = cell.facts("lose-2x1-dies")[0]["errors"]

    assert "of stage 0, shard 0" in first
    assert "was dropped after an earlier failure" in second


@pytest.mark.slow
def test_a_rank_that_falls_silent_is_an_error_within_the_time_limit(cell):
    first, *later = cell.facts("lose-2x1-hangs")[0]["errors"]

    assert "Timed out" in first
    assert ["was dropped after an earlier failure" in one for one in later] == [True, True]


@pytest.mark.parametrize(
    ("layers", "stages", "expected"),
    [(3, 2, [range(2), range(2, 3)]), (8, 4, [range(at, at + 2) for at in (0, 2, 4, 6)])],
)
def test_layers_are_shared_out_evenly_and_the_last_stage_has_the_fewest(layers, stages, expected):
    assert expected == spans(layers, stages)


def test_more_stages_than_layers_are_refused():
    with pytest.raises(ModelError, match="3 layers cannot fill 4 stages"):
        spans(3, 4)
