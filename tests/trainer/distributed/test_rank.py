"""The ranks of a cell rest, go on from what they exported, and sum whole numbers."""

import pytest
from tests.controller.support.forked_cells import fork_clients
from tests.trainer.support import cases
from tests.trainer.support.cells import Cell, Threads, worst

from gyre.config.sections import TrainerConfig
from gyre.trainer.trainer import Trainer

ranks_are_forked = fork_clients("tests.trainer.support.cell_rank")
pytestmark = pytest.mark.slow
"""The ranks take seconds, whichever test comes first."""

RESTED = ["rest:2x1:qwen2", "rest:2x1:qwen3+exact", "rest:1x2:qwen3"]
EXACT = ["exact:2x1:qwen2", "exact:1x2:qwen3"]
ALL = [one.replace(":", "-") for one in (*RESTED, *EXACT)]


@pytest.fixture(scope="module")
def cell(tmp_path_factory):
    """Two ranks that share a process."""
    return Threads(tmp_path_factory.mktemp("cell"), 2, [*RESTED, *EXACT])


rested = pytest.mark.parametrize("plan", ALL[: len(RESTED)])
exact = pytest.mark.parametrize("plan", ALL[len(RESTED) :])


def alone(plan, num_steps):
    """One device that did the same, without any rest: norms of its steps and the trainer."""
    kind, _, exact = plan.split("-")[2].partition("+")
    network = cases.network(kind)
    claims = [cases.claim(network, seed) for seed in (5, 6)]
    trainer = Trainer(
        network,
        section=TrainerConfig(deterministic=bool(exact)),
        objective=cases.SECTION,
        optimizer=cases.OPTIMIZER,
    )
    scores = trainer.score(claims[1])
    norms = []
    for _ in range(num_steps):
        for claim in claims:
            trainer.train(claim, num_executions=cases.NUM_EXECUTIONS)
        norms.append(trainer.step().gradient_norm)
    return norms, scores, trainer


def whole(cell, plan):
    first, last = cell.tensors(plan)
    return first | last


@rested
def test_a_rest_in_a_batch_changes_nothing(cell, plan):
    (first, second), _, trainer = alone(plan, 2)
    for facts in cell.facts(plan):
        assert pytest.approx([first, second, second], rel=1e-9) == facts["norms"]
        assert 2 == facts["version"]
    weights = dict(trainer.network.module.named_parameters())
    assert 1e-10 > worst(weights, whole(cell, f"{plan}-first"))


@rested
def test_ranks_go_on_from_what_they_exported_with_the_same_bits(cell, plan):
    assert 0.0 == worst(whole(cell, f"{plan}-first"), whole(cell, f"{plan}-other"))


@rested
def test_a_claim_is_scored_in_the_middle_of_a_batch(cell, plan):
    """SPEC 8.3."""
    _, scores, _ = alone(plan, 0)
    driver, other = cell.facts(plan)
    sums, counts = zip(*driver["scores"], strict=True)

    assert pytest.approx([one.sum_log_ratio for one in scores], rel=1e-9, abs=1e-12) == sums
    assert tuple(one.count for one in scores) == counts
    assert other["scores"] is None


@rested
def test_a_rank_that_rests_does_nothing(cell, plan):
    for facts in cell.facts(plan):
        is_resting, *refusals = facts["resting"]

        assert is_resting
        assert [True] * 2 == ["restore it first" in one for one in refusals]


@rested
def test_a_rank_that_rests_exports_what_it_does_awake(cell, plan):
    assert [True] * 2 == [facts["exported"] for facts in cell.facts(plan)]


@rested
def test_no_rank_rests_while_the_stream_is_paused(cell, plan):
    assert [True] * 2 == ["close it first" in facts["paused"] for facts in cell.facts(plan)]


@exact
def test_every_order_and_split_of_claims_gives_a_rank_the_same_bits(cell, plan):
    """SPEC 3.6."""
    assert [[True] * 3] * 2 == [facts["alike"] for facts in cell.facts(plan)]


@exact
def test_a_sum_that_is_none_on_one_rank_is_no_step_on_any(cell, plan):
    facts = cell.facts(plan)
    has_it = [True, True] if plan == "exact-1x2-qwen3" else [False, True]

    assert ["NotFinite"] * 2 == [one["error"].partition(":")[0] for one in facts]
    assert has_it == [one["asked"] is not None for one in facts]


@exact
def test_exact_sums_of_ranks_make_the_update_of_one_device(cell, plan):
    _, _, trainer = alone(plan.split("+")[0] + "+exact", 1)
    expected = dict(trainer.network.module.named_parameters())
    found = whole(cell, plan)

    assert 1e-8 > worst(expected, found)


@pytest.mark.slow
def test_ranks_in_processes_of_their_own_rest_alike(tmp_path, cell):
    other = Cell(tmp_path, 2, [RESTED[1]])
    plan = ALL[1]

    assert cell.facts(plan) == other.facts(plan)
    assert 0.0 == worst(whole(cell, f"{plan}-first"), whole(other, f"{plan}-first"))
