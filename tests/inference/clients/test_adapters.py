"""What the adapters send, how they use connections, and what they make of odd answers."""

import asyncio
import json
from array import array
from contextlib import aclosing

import pytest
from aiohttp import web
from tests.waiting import PATIENCE_S

from gyre.inference.clients import sglang as adapter
from gyre.inference.clients.http import client
from gyre.inference.clients.registry import EngineAddress, connect
from gyre.types.errors import EngineError
from gyre.types.sampling import GenerateRequest, SamplingParams

PROMPT = array("i", [5, 6, 7])
PLAIN = SamplingParams(max_tokens=9, stop_ids=(2,))
SHAPED = SamplingParams(
    temperature=0.7, top_p=0.9, max_tokens=9, stop_ids=(2,), stop=("END",), seed=11
)
HOT = SamplingParams(temperature=0.7, max_tokens=9, stop_ids=(2,))


def sglang_answer(ids):
    meta = {
        "finish_reason": {"type": "stop"},
        "completion_tokens": len(ids),
        "output_token_logprobs": [[-0.5, token, None] for token in ids],
    }
    return [{"output_ids": ids, "meta_info": meta}]


def vllm_probed(second):
    """A first token whose runner-up has this log-probability."""
    return {"choices": [{"logprobs": {"top_logprobs": [{"a": 0.0, "b": second}]}}]}


def vllm_answer(ids):
    values = {"token_logprobs": [-0.5] * len(ids)}
    return [{"choices": [{"token_ids": ids, "logprobs": values, "finish_reason": "stop"}]}]


ANSWERS = {"sglang": sglang_answer, "vllm": vllm_answer}


class Engine:
    """A server that answers every POST with the same events, and keeps what it was sent.

    What asks for no stream is answered with `probed`.
    """

    def __init__(self, events, probed=None, status=200):
        self.events = events
        self.probed = probed
        self.status = status
        self.bodies = []
        self.paths = []
        self.connections = set()

    async def handle(self, request):
        self.paths.append(request.path)
        self.connections.add(id(request.transport))
        self.bodies.append(json.loads(await request.content.read()))
        if self.probed is not None and "stream" not in self.bodies[-1]:
            return web.json_response(self.probed, status=self.status)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for event in self.events:
            await response.write(b"data: " + json.dumps(event).encode() + b"\n\n")
        await response.write(b"data: [DONE]\n\n")
        return response


def ask(input_ids=PROMPT, sampling=PLAIN):
    return GenerateRequest(
        id="call-1", input_ids=input_ids.tobytes(), sampling=sampling, execution="e"
    )


async def say(url, kind, *asks):
    """The chunks that each ask is answered with."""
    async with client() as session:
        engine = await connect(EngineAddress(url=url, kind=kind), session)
        try:
            return [[chunk async for chunk in engine.generate(one)] for one in asks]
        finally:
            await engine.close()


def run(serving, engine, kind, *asks):
    async def scenario():
        async with serving(engine.handle) as url:
            return await say(url, kind, *asks)

    return asyncio.run(scenario())


def test_sglang_is_told_every_setting(serving):
    """T28: none is left to a default of the server."""
    engine = Engine(sglang_answer([8, 2]))
    ((chunk,),) = run(serving, engine, "sglang", ask(sampling=SHAPED))

    assert ([8, 2], "stop") == (chunk.ids, chunk.finish)
    assert ["/generate"] == engine.paths
    assert {
        # The mark at the end keeps an abort of call-1 from hitting call-12.
        "rid": "call-1$",
        "input_ids": [5, 6, 7],
        "return_logprob": True,
        "return_prompt_token_ids": True,
        "stream": True,
        "sampling_params": {
            "max_new_tokens": 9,
            "temperature": 0.7,
            "top_p": 0.9,
            "top_k": -1,
            "min_p": 0.0,
            "frequency_penalty": 0.0,
            "presence_penalty": 0.0,
            "repetition_penalty": 1.0,
            "stop_token_ids": [2],
            "stop": ["END"],
            "ignore_eos": False,
            "no_stop_trim": True,
            "skip_special_tokens": False,
            "stream_interval": 32,
            "sampling_seed": 11,
        },
    } == engine.bodies[0]


def test_vllm_is_told_every_setting(serving):
    """T28: none is left to a default of the server."""
    engine = Engine(vllm_answer([8, 2]), probed=vllm_probed(-9999.0))
    ((chunk,),) = run(serving, engine, "vllm", ask(sampling=SHAPED))

    assert ([8, 2], [-0.5, -0.5], "stop") == (chunk.ids, chunk.logprobs, chunk.finish)
    assert ["/v1/completions"] * 2 == engine.paths
    assert {
        "request_id": "call-1",
        "prompt": [5, 6, 7],
        "max_tokens": 9,
        "temperature": 0.7,
        "top_p": 0.9,
        "top_k": -1,
        "min_p": 0.0,
        "frequency_penalty": 0.0,
        "presence_penalty": 0.0,
        "repetition_penalty": 1.0,
        "stop_token_ids": [2],
        "stop": ["END"],
        "include_stop_str_in_output": True,
        "skip_special_tokens": False,
        "logprobs": 0,
        "return_token_ids": True,
        "stream": True,
        "stream_options": {"include_usage": True},
        "stream_interval": 16,
        "seed": 11,
    } == engine.bodies[1]


@pytest.mark.parametrize(
    ("sampling", "kept"),
    [
        (PLAIN, True),
        (HOT, True),
        (SamplingParams(temperature=0.0, top_p=0.9), True),
        (SamplingParams(top_p=0.9), False),
        (SamplingParams(temperature=0.7, top_k=40), False),
    ],
)
def test_sglangs_log_probabilities_are_kept_where_no_token_is_left_out(serving, sampling, kept):
    """T28: it reports after the temperature, but before top-p and top-k."""
    engine = Engine(sglang_answer([8, 2]))
    ((chunk,),) = run(serving, engine, "sglang", ask(sampling=sampling))

    assert ([-0.5, -0.5] if kept else None) == chunk.logprobs
    assert [8, 2] == chunk.ids


@pytest.mark.parametrize(
    ("probed", "status", "kept"),
    [
        (vllm_probed(-9999.0), 200, True),
        (vllm_probed(-7.5), 200, False),
        ({"error": {"message": "at most 0 log-probabilities"}}, 400, False),
    ],
    ids=["processed", "raw", "not allowed"],
)
@pytest.mark.parametrize(
    "sampling",
    [HOT, SamplingParams(top_p=0.9), SamplingParams(top_k=40)],
    ids=["hot", "top-p", "top-k"],
)
def test_vllms_log_probabilities_are_kept_where_it_tells_the_draw(
    serving, sampling, probed, status, kept
):
    """T28: by default it reports what the model gave, before temperature, top-p and top-k."""
    engine = Engine(vllm_answer([8, 2]), probed=probed, status=status)
    ((chunk,), (again,)) = run(serving, engine, "vllm", *[ask(sampling=sampling)] * 2)

    assert ([-0.5, -0.5] if kept else None) == chunk.logprobs == again.logprobs
    assert [8, 2] == chunk.ids
    # It is asked once, and told all that its model's folder might set otherwise.
    assert 1 == sum("stream" not in body for body in engine.bodies)
    assert {
        "prompt": [0],
        "max_tokens": 1,
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": 1,
        "min_p": 0.0,
        "logprobs": 2,
    } == engine.bodies[0]


@pytest.mark.parametrize(
    "sampling", [PLAIN, SamplingParams(temperature=0.0)], ids=["plain", "greedy"]
)
def test_vllm_is_not_asked_for_its_mode_where_it_makes_no_difference(serving, sampling):
    engine = Engine(vllm_answer([8, 2]), probed=vllm_probed(-7.5))
    ((chunk,),) = run(serving, engine, "vllm", ask(sampling=sampling))

    assert [-0.5, -0.5] == chunk.logprobs
    assert 1 == len(engine.bodies)


def test_vllm_is_asked_for_its_mode_again_after_a_failure(serving):
    """What comes back at its address may have been started differently."""
    dead = {"error": {"message": "dead", "code": 500}}
    engine = Engine([dead], probed=vllm_probed(-9999.0))

    async def scenario():
        async with serving(engine.handle) as url, client() as session:
            vllm = await connect(EngineAddress(url=url, kind="vllm"), session)
            with pytest.raises(EngineError, match="500"):
                [_ async for _ in vllm.generate(ask(sampling=HOT))]
            engine.events, engine.probed = vllm_answer([8, 2]), vllm_probed(-7.5)
            return [chunk async for chunk in vllm.generate(ask(sampling=HOT))]

    (chunk,) = asyncio.run(scenario())

    assert chunk.logprobs is None


def test_a_vllm_that_is_too_busy_to_tell_its_mode_may_be_asked_again(serving):
    engine = Engine(vllm_answer([8, 2]), probed={}, status=503)
    with pytest.raises(EngineError, match="503") as error:
        run(serving, engine, "vllm", ask(sampling=HOT))

    assert error.value.retryable


@pytest.mark.parametrize("kind", ANSWERS)
def test_a_prompt_of_200000_ids_arrives_whole(serving, kind):
    long = array("i", range(200_000))
    engine = Engine(ANSWERS[kind]([8, 2]))
    ((chunk,),) = run(serving, engine, kind, ask(long))

    assert long.tolist() == engine.bodies[0]["input_ids" if kind == "sglang" else "prompt"]
    assert [8, 2] == chunk.ids


def test_sglang_is_not_asked_for_the_echo_of_a_long_prompt(serving):
    """It would repeat the echo in every event."""
    engine = Engine(sglang_answer([2]))
    run(serving, engine, "sglang", ask(array("i", range(5000))))

    assert "return_prompt_token_ids" not in engine.bodies[0]


@pytest.mark.parametrize("kind", ANSWERS)
def test_calls_one_after_another_share_a_connection(serving, kind):
    engine = Engine(ANSWERS[kind]([8, 2]))
    run(serving, engine, kind, *[ask()] * 5)

    assert 5 == len(engine.bodies)
    assert 1 == len(engine.connections)


def left_early(serving, calls=1, status=200):
    """What an SGLang is told of calls whose reader goes after their first tokens."""
    aborts = []
    told = asyncio.Event()

    async def handle(request):
        if request.path == "/abort_request":
            aborts.append(await request.json())
            told.set()
            return web.json_response({}, status=status)
        response = web.StreamResponse()
        await response.prepare(request)
        running = {"finish_reason": None, "completion_tokens": 1}
        event = {"output_ids": [8], "meta_info": running}
        await response.write(b"data: " + json.dumps(event).encode() + b"\n\n")
        await told.wait()
        return response

    async def scenario():
        async with asyncio.timeout(PATIENCE_S), serving(handle) as url, client() as session:
            sglang = await connect(EngineAddress(url=url, kind="sglang"), session)
            for _ in range(calls):
                async with aclosing(sglang.generate(ask())) as chunks:
                    assert [8] == (await anext(chunks)).ids
            await sglang.close()

    asyncio.run(scenario())
    return aborts


@pytest.fixture
def patient_aborts(monkeypatch):
    """An answer to an abort is waited for, however long it takes."""
    monkeypatch.setattr(adapter, "ABORT_S", PATIENCE_S)


@pytest.mark.usefixtures("patient_aborts")
def test_sglang_is_told_to_abort_what_is_left_by_its_exact_id(serving):
    """Dropping the connection would be noticed as well, but two seconds later."""
    assert [{"rid": "call-1$"}] == left_early(serving)


@pytest.mark.usefixtures("patient_aborts")
def test_an_sglang_that_refuses_to_abort_is_named_once(serving, caplog):
    assert 2 == len(left_early(serving, calls=2, status=404))
    (said,) = caplog.messages
    assert said.endswith(
        ": /abort_request says 404; it works on for a while at what nobody waits for"
    )


@pytest.mark.parametrize("kind", ANSWERS)
def test_a_redirect_is_not_followed(serving, kind):
    """Only the engines that were configured are ever contacted."""
    elsewhere = Engine(ANSWERS[kind]([8, 2]))

    async def scenario():
        async with serving(elsewhere.handle) as target:

            async def redirect(request):
                raise web.HTTPTemporaryRedirect(f"{target}{request.path}")

            async with serving(redirect) as url:
                await say(url, kind, ask())

    with pytest.raises(EngineError, match="307"):
        asyncio.run(scenario())

    assert [] == elsewhere.paths


@pytest.mark.parametrize("kind", ANSWERS)
def test_a_stream_that_ends_without_a_finish_is_an_error(serving, kind):
    with pytest.raises(EngineError, match="without a finish reason") as error:
        run(serving, Engine([]), kind, ask())

    assert error.value.retryable


@pytest.mark.parametrize(
    ("usage", "retryable"),
    [
        ({"prompt_tokens": 4, "completion_tokens": 2}, False),
        ({"prompt_tokens": 3, "completion_tokens": 3}, True),
    ],
)
def test_vllms_own_counts_are_compared(serving, usage, retryable):
    """T01: a prompt that was truncated on the way is noticed."""
    engine = Engine([*vllm_answer([8, 2]), {"choices": [], "usage": usage}])
    with pytest.raises(EngineError) as error:
        run(serving, engine, "vllm", ask())

    assert retryable == error.value.retryable


def test_vllms_counts_that_agree_are_no_obstacle(serving):
    usage = {"prompt_tokens": 3, "completion_tokens": 2}
    engine = Engine([*vllm_answer([8, 2]), {"choices": [], "usage": usage}])
    ((chunk,),) = run(serving, engine, "vllm", ask())

    assert [8, 2] == chunk.ids


@pytest.mark.parametrize(
    "event",
    [
        {"choices": [{"text": "x", "finish_reason": None}]},
        {"choices": [{"token_ids": [8], "logprobs": {"token_logprobs": []}}]},
        {"choices": [{"token_ids": [8], "logprobs": {"token_logprobs": [None]}}]},
        {"choices": [{"token_ids": [-8], "logprobs": {"token_logprobs": [-1.0]}}]},
        {"choices": [{"token_ids": [8], "finish_reason": "tired"}]},
        {"choices": 7},
        {"error": {"message": "engine is dead", "code": 500}},
        {"error": {"message": "engine is dead", "code": "InternalServerError"}},
    ],
)
def test_vllm_garbage_is_refused(serving, event):
    """FAULTS 6, T27."""
    with pytest.raises(EngineError) as error:
        run(serving, Engine([event]), "vllm", ask())

    assert error.value.retryable


def test_an_error_inside_vllms_stream_that_blames_the_request_is_final(serving):
    event = {"error": {"message": "prompt is too long", "code": 400}}
    with pytest.raises(EngineError, match="400: prompt is too long") as error:
        run(serving, Engine([event]), "vllm", ask())

    assert not error.value.retryable


@pytest.mark.parametrize("kind", ANSWERS)
def test_a_server_that_is_still_loading_is_not_ready(serving, kind):
    async def loading(request):
        return web.Response(status=503)

    async def scenario():
        async with serving(loading) as url, client() as session:
            engine = await connect(EngineAddress(url=url, kind=kind), session)
            return await engine.health()

    health = asyncio.run(scenario())

    assert not health.ready
    assert "/health says 503" == health.detail
