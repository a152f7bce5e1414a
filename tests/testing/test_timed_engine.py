"""A cell that only takes time: replies as long as agents say, and claims that add nothing."""

import time
from array import array
from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.testing.support.virtual_time import Reader, hurried
from tests.trainer.support import cases
from tests.trainer.support.scenes import OBJECTIVE, OPTIMIZER

from gyre.config.sections import EngineConfig, TrainerConfig
from gyre.testing.emulated_cell import ClaimCost, EmulatedTrainer, engine, script, trainer
from gyre.testing.fake_kv import BYTES_PER_TOKEN
from gyre.testing.script import FastCoder
from gyre.testing.timed_engine import TimedEngine
from gyre.testing.timed_script import Pace
from gyre.testing.tokenizer import tokenizer, write_tokenizer
from gyre.types.errors import CellError, ConfigError
from gyre.types.sampling import GenerateRequest, SamplingParams
from gyre.types.training import Score

CODER = FastCoder(tokenizer())
SECTION = EngineConfig(capacity=2, kv_tokens=4096)


@pytest.fixture(scope="module")
def network():
    return cases.network("llama")


@pytest.fixture(scope="module")
def claim(network):
    return cases.claim(network)


def a_trainer(network, *, optimizer=OPTIMIZER, cost=None):
    return EmulatedTrainer(
        network,
        section=TrainerConfig(checkpoint=False),
        objective=OBJECTIVE,
        optimizer=optimizer,
        cost=cost,
    )


def reply_to(*said, pace=None):
    """Text and seconds of the reply to what user and assistant say in turn."""
    roles = ("user", "assistant")
    turns = [f"<|im_start|>{roles[at % 2]}\n{one}<|im_end|>\n" for at, one in enumerate(said)]
    ids = CODER.encode("".join(turns) + "<|im_start|>assistant\n")
    ask = GenerateRequest(
        id="a", input_ids=array("i", ids).tobytes(), sampling=SamplingParams(), execution="e"
    )

    async def flow():
        made = TimedEngine("e", script(), CODER, section=SECTION, pace=pace)
        return await Reader(made, ask).task

    read = hurried(flow())
    return CODER.decode(read.ids), read.times_s[-1]


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (['{"reply_s": 0.35}'], ("step 0 done done<|im_end|>", 0.35)),
        (['do this {"reply_s": 2, "words": 6}'], ("step 0 done done done done<|im_end|>", 2.0)),
        (['{"reply_s": 1e1}', "yes", '{"reply_s": 3}'], ("step 1 done done<|im_end|>", 3.0)),
        (['{"reply_s": 9}', "yes", "and now?"], ("step 1 done done<|im_end|>", 0.0)),
        (['{"reply_s": -1}'], ("step 0 done done<|im_end|>", 0.0)),
        ([], ("step 0 done done<|im_end|>", 0.0)),
    ],
)
def test_a_reply_takes_what_the_last_user_message_says(said, expected):
    assert expected == reply_to(*said)


def test_a_pace_scales_what_is_said_and_stands_where_nothing_is():
    pace = Pace(reply_s=4.0, scale=0.5)

    assert 0.5 == reply_to('{"reply_s": 1}', pace=pace)[1]
    assert 2.0 == reply_to("go", pace=pace)[1]


def test_a_claim_costs_a_base_and_its_tokens(claim):
    num_tokens = sum(pack.num_tokens for pack in claim.packs)
    cost = ClaimCost(base_s=2.0, token_s=0.5)

    assert 2.0 + num_tokens * 0.5 == cost.train_s(claim)
    assert cost.train_s(claim) == pytest.approx(3 * cost.score_s(claim))


def test_a_claim_takes_at_least_its_time(network, claim):
    made = a_trainer(network, cost=ClaimCost(base_s=0.05))
    began_s = time.perf_counter()
    report = made.train(claim, num_executions=4)

    assert 0.05 <= report.work.total_s <= time.perf_counter() - began_s


def test_the_report_says_what_was_given_and_that_nothing_was_computed(network, claim):
    made = a_trainer(network)
    report = made.train(claim, num_executions=4)
    work, measures = report.work, report.measures
    counts = [share.num_targets for share in claim.shares]
    raised = sum(one.num_targets for one in claim.shares if one.advantage > 0)

    assert 0.0 == report.loss
    assert tuple(Score(sum_log_ratio=0.0, count=count) for count in counts) == report.scores
    assert report.scores == made.score(claim)
    assert (5, 5, 52, sum(counts), 0.0) == (
        work.num_packs,
        work.num_skipped,
        work.num_tokens,
        work.num_targets,
        work.model_flops,
    )
    assert (raised, sum(counts) - raised) == (measures.num_raised, measures.num_lowered)
    assert (measures.num_targets, 0.0, 0) == (
        measures.sum_ratio,
        measures.max_gap,
        measures.num_raised_clipped,
    )


def test_scores_that_are_given_stand(network, claim):
    scores = tuple(Score(sum_log_ratio=0.5, count=one.num_targets) for one in claim.shares)

    assert scores == a_trainer(network).train(claim, num_executions=4, scores=scores).scores


def test_a_step_is_real_and_its_sum_is_zero(claim):
    made = a_trainer(cases.network("llama"))
    made.train(claim, num_executions=4)
    summed = [bucket.clone() for bucket in made.gradients]
    report = made.step()

    assert all(not bucket.any() for bucket in summed)
    assert (1, 0.0, False) == (report.version, report.gradient_norm, report.is_clipped)
    assert 1 == made.version


def test_the_sum_of_a_cell_that_computes_is_stepped_too():
    network = cases.network("llama")
    before = {name: one.detach().clone() for name, one in network.module.named_parameters()}
    made = a_trainer(network)
    made.add_gradients([torch.ones_like(bucket) for bucket in made.gradients])

    assert made.step().gradient_norm > 0
    assert any(
        not torch.equal(before[name], one) for name, one in network.module.named_parameters()
    )


def test_what_a_real_trainer_refuses_is_refused(network, claim):
    made = a_trainer(network)
    short = replace(claim, packs=claim.packs[1:])
    pack = claim.packs[0]
    foreign = replace(pack, ids=np.full_like(pack.ids, 10**6))
    with pytest.raises(CellError, match="targets of e5"):
        made.train(short, num_executions=4)
    with pytest.raises(CellError):
        made.train(replace(claim, packs=(foreign, *claim.packs[1:])), num_executions=4)
    made.offload()
    with pytest.raises(CellError, match="rests"):
        made.train(claim, num_executions=4)
    with pytest.raises(CellError, match="rests"):
        made.score(claim)
    made.reload()

    assert 0.0 == made.train(claim, num_executions=4).loss


def test_by_name_both_halves_are_made_with_their_options(network, claim, tmp_path):
    write_tokenizer(tmp_path)
    made = engine(network, name="e", section=SECTION, folder=tmp_path, options={"scale": "0.1"})
    trains = by_name(network, base_s="30", token_s="1", scale="0.0001")

    assert SECTION.kv_tokens * BYTES_PER_TOKEN == made.kv_bytes
    assert (30 + 52) * 0.0001 <= trains.train(claim, num_executions=4).work.total_s


def by_name(network, **options):
    return trainer(
        network,
        section=TrainerConfig(),
        objective=OBJECTIVE,
        optimizer=None,
        temperature=1.0,
        options=options,
    )


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"base_s": "soon"}, "base_s: expected a number"),
        ({"token_s": "nan"}, "token_s: expected a number"),
        ({"rate": "1"}, "rate: unknown option; known here: base_s, scale, token_s"),
    ],
)
def test_options_that_cannot_be_are_named(network, options, said):
    with pytest.raises(ConfigError, match=said):
        by_name(network, **options)


def test_the_emulated_engine_takes_no_script(network, tmp_path):
    with pytest.raises(ConfigError, match="script: unknown option"):
        engine(network, name="e", section=SECTION, folder=tmp_path, options={"script": "a:b"})
