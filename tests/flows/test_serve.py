"""A chat call through `gyre proxy` to `gyre serve`, both real processes, checked with the model."""

import json
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import openai
import pytest
import torch
from tests.inference.support import serving, slow_engine
from tests.waiting import PATIENCE_S

from gyre.model.hf_config import describe
from gyre.model.loader import load_network, new_network
from gyre.storage.call_log import logs, read
from gyre.testing.processes import StandaloneProxy
from gyre.testing.tokenizer import tokenizer, write_tokenizer
from gyre.trajectory.tree import grow

NEAR = 1e-4
CONTEXT = 4096


def write_chat_model(folder, *, seed):
    """A small random network that says nothing sensible, and never ends by itself."""
    config = {
        "model_type": "llama",
        "vocab_size": tokenizer().get_vocab_size(),
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "max_position_embeddings": CONTEXT,
        "tie_word_embeddings": False,
    }
    network = new_network(describe(config, where="test"), seed=seed)
    with torch.no_grad():
        for one in network.module.parameters():
            if one.dim() > 1:
                one.mul_(slow_engine.SHARPNESS)
        _never_say(network, list(tokenizer().get_added_tokens_decoder()))
    return serving.write_model(write_tokenizer(folder), network)


def _never_say(network, ids):
    """The first number of every state is positive and stays so, and these ids have it against them.

    A reply of a random network would otherwise end by chance, and a test with it.
    """
    network.decoder.embed_tokens.weight[:, 0] = 1.0
    for layer in network.layers:
        layer.self_attn.o_proj.weight[0] = 0.0
        layer.mlp.down_proj.weight[0] = 0.0
    network.head[:, 0] = 0.0
    network.head[ids, 0] = -1000.0


@torch.inference_mode()
def logprobs(folder, prompt, output):
    """Of each output id after all before it, from one pass over everything."""
    network = load_network(folder)
    ids = torch.tensor([*prompt, *output])
    states = network.hidden(ids, torch.arange(len(ids)), slow_engine.naive_attention)
    values = torch.log_softmax(states @ network.head.T, dim=-1)[len(prompt) - 1 : -1]
    return values.gather(1, ids[len(prompt) :, None])[:, 0].tolist()


@pytest.fixture
def start():
    """Starts processes, which end with the test."""
    with ExitStack() as stack:
        yield stack.enter_context


@dataclass(frozen=True)
class Pair:
    """Two servers of one model, which may hand their caches to each other."""

    model: Path
    share: Path
    servers: Sequence[serving.ServeProcess]


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """For all tests of this file but the first; the last one stops one of them."""
    folder = tmp_path_factory.mktemp("pair")
    model, share = write_chat_model(folder / "model", seed=1), folder / "share"
    share.mkdir()
    options = ("--device", "cpu", "--name", "small", "--share", str(share))
    with ExitStack() as stack:
        # Both at once, because each takes seconds.
        with ThreadPoolExecutor(2) as threads:
            started = [threads.submit(serving.ServeProcess, model, *options) for _ in range(2)]
        yield Pair(model, share, [stack.enter_context(one.result()) for one in started])


def proxy_of(tmp_path, folder, *servers, max_tokens, options=()):
    return StandaloneProxy(
        tmp_path / "run",
        model=folder,
        engines=[server.url for server in servers],
        options=(
            *("--family", "chatml", "--context", str(CONTEXT)),
            *("--max-tokens", str(max_tokens)),
            *options,
        ),
    )


def chat(execution, *history):
    with openai.OpenAI(
        base_url=f"{execution.url}/v1", api_key=execution.key, max_retries=0
    ) as client:
        return client.chat.completions.create(model="any", messages=history)


def post(url, body):
    request = urllib.request.Request(url, data=json.dumps(body).encode(), method="POST")
    with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
        return json.load(answer)


def sampled(server):
    """Tokens that a server has put out since it started."""
    with urllib.request.urlopen(f"{server.url}/metrics", timeout=PATIENCE_S) as answer:
        lines = [line.split() for line in answer.read().decode().splitlines()]
    counted = dict(line for line in lines if len(line) == 2)
    return int(counted["gyre_serve_output_tokens_total"])


def recorded(proxy):
    return grow(read(next(logs(proxy.folder))).records)


def assert_of_the_model(tree, call, *folders):
    """The recorded log-probabilities are the models', each folder's for its span."""
    prompt = tree.prompt_ids(call).tolist()
    output = tree.output_ids(call).tolist()
    found = tree.output_logprobs(call).tolist()
    start = 0
    for folder, span in zip(folders, tree.calls[call].spans, strict=True):
        end = start + span.tokens
        wanted = logprobs(folder, prompt + output[:start], output[start:end])
        assert found[start:end] == pytest.approx(wanted, abs=NEAR, rel=0)
        start = end
    assert len(output) == start > 0


def test_a_chat_call_is_recorded_as_the_model_sampled_it(tmp_path, start):
    """SPEC 2.4, 4.1: ids, log-probabilities and versions, before and after new weights."""
    old = write_chat_model(tmp_path / "old", seed=1)
    new = write_chat_model(tmp_path / "new", seed=2)
    server = start(serving.ServeProcess(old, "--device", "cpu"))
    proxy = start(proxy_of(tmp_path, old, server, max_tokens=40))
    execution = proxy.open("x")
    first = {"role": "user", "content": "What is the time?"}
    reply = chat(execution, first)
    order = {"model_path": str(new), "weight_version": "5"}
    loaded = post(f"{server.url}/update_weights_from_disk", order)
    said = reply.choices[0].message.content
    then = {"role": "user", "content": "And now?"}
    chat(execution, first, {"role": "assistant", "content": said}, then)
    tree = recorded(proxy)

    assert loaded["success"]
    assert [1, 2] == list(tree.calls)
    assert [(0,), (5,)] == [tuple(s.version for s in tree.calls[n].spans) for n in (1, 2)]
    assert [(), ()] == [
        tuple(flag for flag in tree.calls[n].flags if flag != "unknown-harness") for n in (1, 2)
    ]
    assert 40 == reply.usage.completion_tokens == len(tree.output_ids(1))
    assert reply.usage.prompt_tokens == len(tree.prompt_ids(1))
    assert_of_the_model(tree, 1, old)
    assert_of_the_model(tree, 2, new)
    assert (0, 0) == (server.stop(), proxy.stop())


@pytest.mark.parametrize("follows", [True, False])
def test_the_cache_follows_a_call_that_is_sent_elsewhere(tmp_path, start, pair, follows):
    """SPEC 2.3: with the hand-over off, only the tokens computed again change."""
    servers = pair.servers
    names = [server.url.removeprefix("http://") for server in servers]
    options = ("--routed", *(() if follows else ("--kv", "0")))
    proxy = start(proxy_of(tmp_path, pair.model, *servers, max_tokens=1500, options=options))
    execution = proxy.open("x")
    proxy.control("PUT", "routes", {"version": 1, "routes": {"x": names[0]}})
    before = sampled(servers[0])

    with ThreadPoolExecutor(1) as thread:
        # Words that nobody has said before, of which neither server can have a cache.
        call = thread.submit(chat, execution, {"role": "user", "content": f"It is {follows}."})
        while not call.done() and sampled(servers[0]) <= before + 200:
            pass
        moved = proxy.control("PUT", "routes", {"version": 2, "routes": {"x": names[1]}})
        reply = call.result()
    tree = recorded(proxy)
    counted = proxy.metrics()

    assert (1, 1500) == (moved["moved"], reply.usage.completion_tokens)
    assert names == [span.engine for span in tree.calls[1].spans]
    assert_of_the_model(tree, 1, pair.model, pair.model)
    had = len(tree.prompt_ids(1)) + tree.calls[1].spans[0].tokens
    carried = counted["gyre_carried_tokens_total"]
    assert follows == (carried > 100) == (counted["gyre_carried_bytes_total"] > 0)
    assert had == carried + counted["gyre_again_tokens_total"]
    assert 0 == counted["gyre_hand_overs_lost_total"]
    assert [] == list(pair.share.iterdir())


def test_a_stock_client_gets_completions(start, pair):
    url = f"{pair.servers[0].url}/v1"
    client = start(openai.OpenAI(base_url=url, api_key="none", max_retries=0))
    asked = {"model": "small", "prompt": "once", "max_tokens": 30, "seed": 3}
    whole = client.completions.create(**asked, logprobs=1)
    events = list(
        client.completions.create(**asked, stream=True, stream_options={"include_usage": True})
    )
    with pytest.raises(openai.BadRequestError) as refused:
        client.completions.create(**asked | {"n": 2})

    assert "small" == client.models.list().data[0].id == whole.model
    assert whole.choices[0].text == "".join(
        choice.text for event in events for choice in event.choices
    )
    assert whole.usage == events[-1].usage
    assert 30 == whole.usage.completion_tokens == len(whole.choices[0].logprobs.token_logprobs)
    assert "n: expected 1" in refused.value.message


def test_a_call_outlives_the_server_that_is_told_to_stop(tmp_path, start, pair):
    """SPEC 2.3: what was sampled is kept, and the call continues elsewhere."""
    proxy = start(proxy_of(tmp_path, pair.model, *pair.servers, max_tokens=1500))
    execution = proxy.open("x")
    before = {one.url: sampled(one) for one in pair.servers}

    with ThreadPoolExecutor(1) as thread:
        call = thread.submit(chat, execution, {"role": "user", "content": "Go on, and on."})
        serving_it = None
        while serving_it is None and not call.done():
            busy = [one for one in pair.servers if sampled(one) > before[one.url] + 100]
            serving_it = busy[0] if busy else None
        assert not call.done(), "it was over before the server could be stopped"
        status, reply = serving_it.stop(), call.result()
    tree = recorded(proxy)

    assert (0, 1500) == (status, reply.usage.completion_tokens)
    assert 2 == len({span.engine for span in tree.calls[1].spans})
    assert_of_the_model(tree, 1, pair.model, pair.model)
