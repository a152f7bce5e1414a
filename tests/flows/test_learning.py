"""The model plane learns: a tiny model, a task in two calls, rewards and nothing else."""

import re
from pathlib import Path
from statistics import mean

import pytest
import torch
from tests.flows.learning.loop import Settings, learn, shuffled
from tests.flows.learning.task import NAME, TOOL, Journey, travel

STEPS = 44
FEW = 4
"""Steps that show what does not take a whole curve."""
CHANCE, LEARNED = 0.35, 0.9
BAND = 0.15
"""How far rewards may be from where they began when nothing is learned."""
WARM_START = Path(__file__).parents[2] / "scripts" / "tiny"


@pytest.fixture(scope="module")
def curve():
    """The whole of it, once for all who look at it."""
    return learn(Settings(), STEPS)[0]


def rewards(steps):
    return [round(step.reward, 3) for step in steps]


def test_rewards_rise_from_chance_to_nearly_all(curve):
    found = rewards(curve)

    assert 0 < mean(found[:3]) < CHANCE, found
    assert mean(found[-5:]) > LEARNED, found


def test_every_batch_is_trained_by_the_weights_that_sampled_it(curve):
    assert [{version} for version in range(STEPS)] == [step.versions for step in curve]


def test_no_execution_has_a_ratio_that_is_not_one(curve):
    """On-policy, the bounds of the objective are a hundred times wider than what rounding does."""
    assert [] == [step.max_log_ratio for step in curve if step.max_log_ratio > 1e-4]


def test_the_engine_and_the_trainer_agree_on_log_probabilities(curve):
    """Step by step, but for a rare target on which float32 is as far from float64 itself."""
    found = [step.max_gap for step in curve]

    assert max(found) < 1e-3, found
    assert sum(gap > 1e-4 for gap in found) <= STEPS // 4, found


def test_in_float64_they_agree_to_the_digits_of_a_record():
    steps, _ = learn(Settings(dtype=torch.float64), 2)

    assert all(0 < step.max_gap < 1e-6 for step in steps), steps


def test_most_tokens_are_shared(curve):
    assert all(step.saved_fraction is None or step.saved_fraction > 0.5 for step in curve), curve


def test_one_seed_gives_one_curve(curve):
    steps, digest = learn(Settings(), FEW)

    assert curve[:FEW] == steps
    assert (steps, digest) == learn(Settings(), FEW)


def test_rewards_of_others_teach_nothing(curve):
    """In as many steps, rewards that are one's own have led out of the band."""
    num_steps = STEPS // 2
    found = rewards(learn(Settings(judge=shuffled), num_steps)[0])
    start = mean(found[:3])

    assert [] == [reward for reward in found if abs(reward - start) > BAND], found
    assert mean(rewards(curve)[num_steps - 5 : num_steps]) > start + BAND, rewards(curve)


def test_without_a_learning_rate_nothing_is_learned():
    steps, digest = learn(Settings(lr=0.0), FEW)
    found = rewards(steps)

    assert learn(Settings(lr=0.0), 0)[1] == digest
    assert [] == [reward for reward in found if abs(reward - found[0]) > BAND], found


def test_the_warm_start_says_nothing_of_the_task():
    """It has the words of the tool's name and argument, one by one: the model can say no others."""
    source = WARM_START.read_text()
    said = [TOOL["function"]["description"], Journey(first="1", second="2").request]
    words = {word for text in said for word in re.findall(r"[a-z]{2,}", text.lower())}

    assert NAME not in source
    assert [] == [text for text in said if text in source]
    assert {"line"} == words & set(re.findall(r"[a-z]{2,}", source.lower()))
    # Letters that are drawn at random are fewer than these.
    assert all(len(word) > 6 for word in words - {"line"})


def call(line, name=NAME, key="line"):
    """An assistant message with one call."""
    function = {"name": name, "arguments": f'{{"{key}": "{line}"}}'}
    return {"role": "assistant", "tool_calls": [{"id": "c", "function": function}]}


@pytest.mark.parametrize(
    ("replies", "expected"),
    [
        ([{"role": "assistant", "content": "3"}], 0.0),
        ([call("2")], 0.0),
        ([call("3", name="table")], 0.0),
        ([call("3", key="side")], 0.0),
        ([call("3"), call("3")], 0.5),
        ([call("3"), {"role": "assistant", "content": "1"}], 0.5),
        ([call("3"), call("1")], 1.0),
    ],
)
def test_a_journey_is_worth_its_right_calls(replies, expected):
    talk = travel(Journey(first="3", second="1"))
    sent = [next(talk)]
    for reply in replies[:-1]:
        sent.append(talk.send(reply))
    with pytest.raises(StopIteration) as ended:
        talk.send(replies[-1])

    assert expected == ended.value.value
    assert [1, 3][: len(replies)] == [len(messages) for messages in sent]
