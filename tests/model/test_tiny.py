"""The model `tiny`: what it does, what it must not know, and that the script makes it."""

import importlib.util
import random
import re
import subprocess
import sys
from importlib.machinery import SourceFileLoader
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from tests.model.folders import same, weights_of

from gyre.backends.renderers.load import load_renderer
from gyre.backends.renderers.tokens import Tokens
from gyre.model.known import model_folder
from gyre.model.load import load_network
from gyre.words.conversation import Message, Tool

SCRIPT = Path(__file__).parents[2] / "scripts" / "tiny"

TASK_WORDS = """
red green blue yellow black white orange purple pink brown grey violet
cat dog horse cow sheep goat pig bird fish otter lion tiger bear wolf fox mouse
lisbon vienna athens dublin paris london berlin rome madrid oslo city colour color animal travel
"""
"""What tasks that tiny has to learn may speak of."""


@pytest.fixture(scope="module")
def script():
    loader = SourceFileLoader("tiny_script", str(SCRIPT))
    spec = importlib.util.spec_from_loader("tiny_script", loader)
    module = importlib.util.module_from_spec(spec)
    # Its dataclasses look their module up, and no cache belongs beside a script.
    sys.modules["tiny_script"] = module
    before, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    loader.exec_module(module)
    sys.dont_write_bytecode = before
    yield module
    del sys.modules["tiny_script"]


def behaves(measured):
    """What others rely on: the format is known, and everything else is chance."""
    assert measured.well_formed >= 0.9
    assert 0.4 < measured.calls < 0.95
    assert 0.25 < measured.first_tool < 0.75
    assert measured.right_key > 0.5
    assert measured.commonest_value < 0.35
    assert measured.repeated_result < 0.3


@pytest.mark.slow
def test_replies_are_well_formed_and_choices_are_chance(script):
    behaves(script.measure(model_folder("tiny"), prompts=400, seed=2))


@pytest.mark.slow
def test_the_script_makes_a_model_that_behaves_alike(script, tmp_path):
    done = subprocess.run(
        [sys.executable, "-W", "error", SCRIPT, "--to", tmp_path / "tiny", "--seed", "0"],
        capture_output=True,
        text=True,
    )
    # How long it took is for the reader of the test's output.
    print(done.stdout)

    assert (0, "") == (done.returncode, done.stderr)
    behaves(script.measure(tmp_path / "tiny", prompts=400, seed=2))


def test_the_tokenizer_in_the_package_is_the_one_the_script_makes(script):
    shipped = (model_folder("tiny") / "tokenizer.json").read_text(encoding="utf-8")

    assert script.make_tokenizer() == shipped
    assert script.VOCABULARY == 1 + max(Tokens(shipped, name="tiny").added.values())
    assert load_renderer("tiny").stop_ids[0] == load_network("tiny").module.config.eos_token_id


def test_a_seed_gives_the_same_weights(script, monkeypatch):
    monkeypatch.setattr(script, "DRILLS", 2)
    tokens = Tokens(script.make_tokenizer(), name="tiny")
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
