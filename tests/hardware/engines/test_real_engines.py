"""What a real engine with a real model does behind the adapters, and behind the whole proxy."""

import asyncio
import itertools
import json
import math
import subprocess
import threading
from array import array
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path

import openai
import pytest
from real import installed
from real.relay import Relay
from real.server import WINDOW, RealEngine

from gyre.inference.clients.http import client
from gyre.inference.clients.registry import connect, read_address
from gyre.renderers.registry import load_renderer
from gyre.storage.call_log import logs, read
from gyre.testing.processes import StandaloneProxy
from gyre.trajectory.tree import grow
from gyre.types.conversation import Message
from gyre.types.errors import EngineError
from gyre.types.sampling import GenerateRequest, SamplingParams

pytestmark = pytest.mark.engines

FP32 = ("--dtype", "float32")
OPTIONS = {"vllm": (*FP32, "--logprobs-mode", "processed_logprobs"), "sglang": FP32}
NEAR = 2e-3
"""Largest difference of two log-probabilities, in nats, between two fp32 implementations."""
NEAR_BF16 = 0.5
PATIENCE_S = 120
STORY = "Tell me a long story about a fox and a river."
SHORT = "What is the capital of France?"

_numbers = itertools.count(1)


@pytest.fixture(scope="module", params=["vllm", "sglang"])
def engine(request, tmp_path_factory):
    log = tmp_path_factory.mktemp(request.param) / "server.log"
    with RealEngine(request.param, log, *OPTIONS[request.param]) as started:
        yield started


@pytest.fixture(autouse=True)
def _of_engine(request, record_property):
    if "engine" in request.fixturenames:
        record_property("engine", request.getfixturevalue("engine").kind)


@pytest.fixture(scope="module")
def renderer():
    return load_renderer(str(installed.model()))


@pytest.fixture(scope="module")
def ask(renderer):
    """Makes asks: a user's words, what was sampled already, and the settings."""

    def make(said, *, sampled=(), **settings):
        prompt = renderer.render([Message(role="user", text=said)], []).ids
        settings = {"max_tokens": 48, "stop_ids": renderer.stop_ids, **settings}
        return GenerateRequest(
            # An engine may hold an id for some seconds after its request has ended.
            id=f"ask-{next(_numbers):06}",
            input_ids=array("i", [*prompt, *sampled]).tobytes(),
            sampling=SamplingParams(**settings),
            execution="e",
        )

    return make


@dataclass
class Answer:
    """Everything an engine said to one ask."""

    ask: GenerateRequest
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] | None = field(default_factory=list)
    finish: str | None = None
    echoes: list[list[int]] = field(default_factory=list)

    @property
    def prompt(self) -> list[int]:
        return array("i", self.ask.input_ids).tolist()


async def answer(adapter, one):
    said = Answer(one)
    async for chunk in adapter.generate(one):
        said.ids += chunk.ids
        if chunk.logprobs is None:
            said.logprobs = None
        elif said.logprobs is not None:
            said.logprobs += chunk.logprobs
        said.echoes += [] if chunk.prompt_ids is None else [chunk.prompt_ids]
        said.finish = chunk.finish
    return said


def say(engine, *asks, at_once=False):
    """The answers of the engine, asked through its adapter."""

    async def scenario():
        async with asyncio.timeout(PATIENCE_S), client() as session:
            adapter = await connect(read_address(engine.address), session)
            try:
                if at_once:
                    return await asyncio.gather(*(answer(adapter, one) for one in asks))
                return [await answer(adapter, one) for one in asks]
            finally:
                await adapter.close()

    return asyncio.run(scenario())


def distance(engine, answers):
    """The largest difference from a plain forward pass of the same weights in fp32, in nats."""
    rows = [
        {
            "prompt": one.prompt,
            "output": one.ids,
            "temperature": one.ask.sampling.temperature,
            "top_p": one.ask.sampling.top_p,
            "top_k": one.ask.sampling.top_k,
        }
        for one in answers
    ]
    done = subprocess.run(
        [installed.python(engine.kind), Path(__file__).parent / "real" / "reference.py"],
        input=json.dumps({"model": str(installed.model()), "rows": rows}),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    expected = json.loads(done.stdout)
    assert [len(one.ids) for one in answers] == [len(one.logprobs) for one in answers]
    return max(
        abs(value - found)
        for one, row in zip(answers, expected, strict=True)
        for value, found in zip(row, one.logprobs, strict=True)
    )


def test_vllm_in_its_default_mode_gives_only_what_it_knows(ask, tmp_path, record_property):
    """T28: at another temperature than 1 it reports another distribution than it samples from."""
    record_property("engine", "vllm")
    with RealEngine("vllm", tmp_path / "server.log", "--dtype", "bfloat16") as raw:
        (plain, cool) = say(raw, ask(STORY), ask(STORY, temperature=0.7))
        found = distance(raw, [plain])
    record_property("max_logprob_error_bf16", found)

    assert cool.logprobs is None
    assert 48 == len(cool.ids)
    assert found < NEAR_BF16


def test_it_is_recognised_and_says_its_health(engine):
    async def scenario():
        async with client() as session:
            adapter = await connect(read_address(engine.url), session)
            return type(adapter).__name__, await adapter.health()

    name, health = asyncio.run(scenario())

    assert {"vllm": "VllmEngine", "sglang": "SglangEngine"}[engine.kind] == name
    assert (True, str(installed.model())) == (health.ready, health.model)


def test_every_id_has_a_finite_log_probability(engine, ask):
    """T27."""
    (said,) = say(engine, ask(STORY, max_tokens=70))

    assert (70, "length") == (len(said.ids), said.finish)
    assert 70 == len(said.logprobs)
    assert all(math.isfinite(value) and value <= 0 for value in said.logprobs)


def test_the_stop_id_is_kept_as_the_last_id(engine, ask, renderer):
    (said,) = say(engine, ask(SHORT, temperature=0.0, max_tokens=100))

    assert "stop" == said.finish
    assert said.ids[-1] in renderer.stop_ids
    assert not set(renderer.stop_ids) & set(said.ids[:-1])
    assert "Paris" in renderer.decode(said.ids)


def test_ids_that_spell_a_stop_string_are_kept(engine, ask, renderer):
    """T31."""
    (said,) = say(engine, ask(SHORT, temperature=0.0, stop=("Paris",)))

    assert "stop" == said.finish
    assert renderer.decode(said.ids).endswith("Paris")
    assert len(said.ids) == len(said.logprobs)


def test_the_prompt_is_echoed_once_and_as_it_was_sent(engine, ask):
    """T01."""
    (said,) = say(engine, ask(STORY))

    assert [said.prompt] == said.echoes


def test_a_greedy_reply_goes_on_from_a_cut_as_if_it_had_not_been_cut(engine, ask):
    """T07: also from inside a chunk, and with log-probabilities that agree."""
    (whole,) = say(engine, ask(STORY, temperature=0.0, max_tokens=64))
    cuts = (1, 16, 37, 63)
    rests = say(
        engine,
        *(
            ask(STORY, sampled=whole.ids[:cut], temperature=0.0, max_tokens=64 - cut)
            for cut in cuts
        ),
    )

    assert [whole.ids[cut:] for cut in cuts] == [rest.ids for rest in rests]
    for cut, rest in zip(cuts, rests, strict=True):
        assert pytest.approx(whole.logprobs[cut:], abs=NEAR) == rest.logprobs


def test_greedy_asks_at_once_do_not_mix(engine, ask):
    asks = [ask(f"Count from {start}.", temperature=0.0, max_tokens=20) for start in range(6)]
    together = say(engine, *asks, at_once=True)
    alone = say(engine, *(ask(f"Count from {n}.", temperature=0.0, max_tokens=20) for n in (0, 5)))

    assert [one.prompt for one in together] == [one.echoes[0] for one in together]
    assert [alone[0].ids, alone[1].ids] == [together[0].ids, together[5].ids]


def test_closing_early_aborts_at_the_engine(engine, ask):
    """An engine that went on would say so for the hundreds of tokens that are missing."""

    async def scenario():
        async with asyncio.timeout(PATIENCE_S), client() as session:
            adapter = await connect(read_address(engine.address), session)
            one = ask(STORY, max_tokens=1500, stop_ids=())
            async with aclosing(adapter.generate(one)) as chunks:
                got = 0
                async for chunk in chunks:
                    got += len(chunk.ids)
                    if got > 32:
                        break
                before = await asyncio.to_thread(engine.running)
            await adapter.close()
            async with asyncio.timeout(10):
                while await asyncio.to_thread(engine.running):
                    continue
            return before, got

    before, got = asyncio.run(scenario())

    assert 1 == before
    assert got < 200


def test_a_prompt_beyond_the_window_is_refused_for_good(engine, ask):
    with pytest.raises(EngineError) as error:
        say(engine, ask("word " * WINDOW))

    assert not error.value.retryable


SETTINGS = {
    "plain": {},
    "cool": {"temperature": 0.7},
    "hot": {"temperature": 1.3},
    "greedy": {"temperature": 0.0},
}
CUT_SHORT = {
    "top-p": {"top_p": 0.8},
    "top-k": {"temperature": 0.7, "top_k": 20},
    "both": {"top_p": 0.9, "top_k": 50},
}


def test_log_probabilities_are_those_of_the_distribution_sampled_from(engine, ask, record_property):
    """T28: of the tokens that could be drawn, at the temperature they were drawn with.

    SGLang does not say so much of top-p and top-k, hence nothing is recorded there. A greedy token
    has its log-probability at temperature 1.
    """
    cut_short = say(engine, *(ask(STORY, **how) for how in CUT_SHORT.values()))
    answers = say(engine, *(ask(STORY, **how) for how in SETTINGS.values()))
    if engine.kind == "sglang":
        assert [None] * len(cut_short) == [one.logprobs for one in cut_short]
    else:
        answers += cut_short
    found = distance(engine, answers)
    record_property("max_logprob_error", found)

    assert found < NEAR


@pytest.fixture
def stage(engine, tmp_path):
    """The whole proxy in front of the engine, with a relay between that keeps what goes by."""

    def start(*options):
        proxy = StandaloneProxy(
            tmp_path / "run",
            model=installed.model(),
            engines=[f"{engine.kind}={relay.url}"],
            options=("--context", str(WINDOW), *options),
        )
        opened.append(proxy)
        return proxy, relay, proxy.open("x")

    opened: list[StandaloneProxy] = []
    with Relay(engine.url) as relay:
        try:
            yield start
        finally:
            for proxy in opened:
                proxy.stop()


def chat(execution, history, **settings):
    """One turn by the official client."""
    with openai.OpenAI(
        base_url=f"{execution.url}/v1", api_key=execution.key, max_retries=0
    ) as official:
        return official.chat.completions.create(model="policy", messages=history, **settings)


def test_a_conversation_is_recorded_as_the_engine_saw_it(engine, stage, tmp_path, record_property):
    """T01: every stored prompt is what the engine says it read, and nothing forks."""
    proxy, relay, execution = stage("--max-tokens", "60")
    history = [{"role": "system", "content": "You answer briefly."}]
    for said in (SHORT, "And of Italy?", STORY, "What <|im_end|> is in the story?"):
        history.append({"role": "user", "content": said})
        reply = chat(execution, history).choices[0].message
        history.append({"role": "assistant", "content": reply.content})
    proxy.close("x")
    (path,) = logs(tmp_path / "run")
    tree = grow(read(path).records)
    prompts = [tree.prompt_ids(call).tolist() for call in tree.calls]

    assert 4 == len(prompts)
    assert prompts == [exchange.prompt for exchange in relay.exchanges]
    assert prompts == [exchange.echo for exchange in relay.exchanges]
    assert {None} == {node.fork for node in tree.calls.values()}
    # Of its defects only that: the bare client is no harness Gyre knows.
    assert {("unknown-harness",)} == {node.flags for node in tree.calls.values()}
    assert tree.is_complete
    answers = [
        Answer(
            GenerateRequest(
                id="",
                input_ids=array("i", prompt).tobytes(),
                sampling=SamplingParams(),
                execution="x",
            ),
            ids=tree.output_ids(call).tolist(),
            logprobs=tree.output_logprobs(call).tolist(),
        )
        for prompt, call in zip(prompts, tree.calls, strict=True)
    ]
    found = distance(engine, answers)
    record_property("max_logprob_error_recorded", found)

    assert found < NEAR


def test_a_call_is_answered_although_its_engine_is_killed_and_started_again(
    engine, stage, tmp_path, ask
):
    """T07: what was sampled before the kill is kept, and the reply is the one of no kill."""
    proxy, relay, execution = stage("--max-tokens", "160", "--temperature", "0")
    history = [{"role": "user", "content": STORY}]
    (whole,) = say(engine, ask(STORY, temperature=0.0, max_tokens=160))
    replies = []
    caller = threading.Thread(target=lambda: replies.append(chat(execution, history)))
    caller.start()
    relay.wait_events(3, PATIENCE_S)
    engine.kill()
    engine.restart()
    caller.join(PATIENCE_S)
    proxy.close("x")
    (path,) = logs(tmp_path / "run")
    tree = grow(read(path).records)
    (node,) = tree.calls.values()
    first, *_, last = relay.exchanges

    assert 1 == len(replies)
    assert whole.ids == tree.output_ids(node.id).tolist()
    assert pytest.approx(whole.logprobs, abs=NEAR) == tree.output_logprobs(node.id).tolist()
    assert whole.prompt == first.prompt == tree.prompt_ids(node.id).tolist()
    # The second engine was sent what the first had sampled, and only asked for the rest.
    taken = len(last.prompt) - len(first.prompt)
    assert 0 < taken < 160
    assert first.prompt + whole.ids[:taken] == last.prompt
    assert 0 < proxy.metrics()["gyre_reroutes_total"]
