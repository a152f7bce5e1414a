"""The model `tiny`: what it does, what it must not know, and that the script makes it."""

import json
import random
import re
import sys
from itertools import pairwise

import pytest
import torch
from tests.model.support.folders import same, weights_of
from tests.model.support.tiny_again import RECORD, digest, load_script, measured

from gyre.model.loader import load_network
from gyre.model.registry import model_folder
from gyre.renderers.registry import load_renderer
from gyre.renderers.tokenizer import PackageTokenizer
from gyre.types.conversation import Message, Tool

TASK_WORDS = """
red green blue yellow black white orange purple pink brown grey violet
cat dog horse cow sheep goat pig bird fish otter lion tiger bear wolf fox mouse
lisbon vienna athens dublin paris london berlin rome madrid oslo city colour color animal travel
"""
"""What tasks that tiny has to learn may speak of."""


@pytest.fixture(scope="module")
def script():
    yield load_script()
    del sys.modules["tiny_script"]


def behaves(found):
    """What others rely on: the format is known, and everything else is chance."""
    assert found.well_formed >= 0.9
    assert 0.4 < found.calls < 0.95
    assert 0.25 < found.first_tool < 0.75
    assert found.right_key > 0.5
    assert found.commonest_value < 0.35
    assert found.repeated_result < 0.3


@pytest.mark.slow
def test_replies_are_well_formed_and_choices_are_chance(script):
    behaves(measured(script, model_folder("tiny"), prompts=100))


def test_a_model_that_the_script_made_anew_behaves_alike(script):
    """`python -m tests.model.support.tiny_again` makes it, in minutes, when the script changes."""
    record = json.loads(RECORD.read_text())

    assert digest() == record["script"]
    behaves(script.Measured(**record["measured"]))


def test_the_script_makes_all_that_is_in_the_package(script, tmp_path, monkeypatch):
    monkeypatch.setattr(script, "DRILLS", 2)
    script.make(tmp_path, 0, steps=4)
    shipped = model_folder("tiny")
    made = {path.name for path in tmp_path.iterdir()}
    plain = [name for name in made if name.startswith(("config", "tokenizer", "generation"))]

    assert {path.name for path in shipped.iterdir()} == made
    assert {name: (shipped / name).read_text() for name in plain} == {
        name: (tmp_path / name).read_text() for name in plain
    }
    assert {name: one.shape for name, one in weights_of(load_network("tiny")).items()} == {
        name: one.shape for name, one in weights_of(load_network(tmp_path)).items()
    }


def test_the_tokenizer_in_the_package_is_the_one_the_script_makes(script):
    shipped = (model_folder("tiny") / "tokenizer.json").read_text(encoding="utf-8")

    assert script.make_tokenizer() == shipped
    assert script.VOCABULARY == 1 + max(PackageTokenizer(shipped, name="tiny").added.values())
    assert load_renderer("tiny").stop_ids[0] == load_network("tiny").module.config.eos_token_id


def test_a_seed_gives_the_same_weights(script, monkeypatch):
    monkeypatch.setattr(script, "DRILLS", 2)
    tokens = PackageTokenizer(script.make_tokenizer(), name="tiny")
    made = [script.start(0), script.start(0), script.start(1)]
    for network in made[:2]:
        script.train(network, tokens, 0, steps=4)

    assert same(weights_of(made[0]), weights_of(made[1]))
    assert not same(weights_of(script.start(0)), weights_of(made[2]))


def test_no_text_of_a_task_is_in_what_it_learns_from(script):
    said = set(re.findall(r"[a-z]+", " ".join([*script.WORDS, *script.PHRASES]).lower()))

    assert set() == said & set(TASK_WORDS.split())


def test_the_words_of_the_lessons_are_the_scripts_own_or_letters_at_random(script):
    talk = script.Talk(random.Random(0), odd=0.0)
    known = {*script.WORDS, *script.VALUES}
    for _ in range(200):
        messages, offers = talk.conversation()
        said = [message.text for message in messages] + [offer.tool.name for offer in offers]

        assert set() == {word for one in said for word in re.findall(r"[a-z0-9]+", one)} - known


def test_lessons_choose_tools_and_values_evenly_and_answers_follow_from_nothing(script):
    talk = script.Talk(random.Random(0))
    firsts, repeats, values = [], [], []
    for _ in range(3000):
        messages, offers = talk.conversation()
        for before, message in pairwise(messages):
            if message.calls and len(offers) == 2:
                firsts.append(message.calls[0].name == offers[0].tool.name)
            if before.role == "tool" and message.text in set(script.VALUES):
                values.append(message.text)
                repeats.append(before.text == message.text)
    chance = 1 / len(script.VALUES)

    assert abs(sum(firsts) / len(firsts) - 0.5) < 0.06
    assert sum(repeats) / len(repeats) < 2 * chance
    assert all(0.5 * chance < values.count(one) / len(values) < 2 * chance for one in script.VALUES)


def test_a_loaded_tiny_continues_a_prompt_of_the_renderer():
    """Greedily, a request with one tool is answered with a call of it."""
    renderer = load_renderer("tiny")
    tool = Tool(
        name="find_path",
        description="look here.",
        parameters='{"type":"object","properties":{"key":{"type":"string"}},"required":["key"]}',
    )
    ids = renderer.render([Message(role="user", text="find this path.")], [tool]).ids
    network = load_network("tiny")
    network.module.set_attn_implementation("sdpa")
    prompt = torch.tensor([ids])
    out = network.module.generate(
        input_ids=prompt,
        attention_mask=torch.ones_like(prompt),
        do_sample=False,
        max_new_tokens=40,
    )
    reply = out[0, len(ids) :].tolist()
    parsed = renderer.parse(reply, ids, [tool])

    assert renderer.stop_ids[0] == reply[-1]
    assert ["find_path"] == [call.name for call in parsed.calls]
