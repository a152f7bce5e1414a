"""The served engine: what it refuses and how, its controls, and what becomes of requests."""

import asyncio
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.inference.support import serving, slow_engine
from tests.waiting import until

from gyre.config.sections import LimitsConfig

ROOT = Path(__file__).parents[3]
PROMPT = [3, 1, 4, 1, 5]
ENDLESS = 2**16
NETWORK = slow_engine.network()


def generate(ids=PROMPT, *, rid="r", stream=False, **params):
    given = {"max_new_tokens": 12, "sampling_seed": 5} | params
    return {
        "input_ids": list(ids),
        "rid": rid,
        "stream": stream,
        "return_logprob": True,
        "sampling_params": given,
    }


def endless(rid="r"):
    return generate(rid=rid, stream=True, max_new_tokens=ENDLESS)


class Started:
    """A request that streams, and a moment to wait for."""

    def __init__(self, client, body):
        self.parts = []
        self.said = asyncio.Event()
        self.hang_up = asyncio.Event()
        self._task = asyncio.create_task(
            client.post("/generate", body, hang_up=self.hang_up, on_part=self._heard)
        )

    def _heard(self, part):
        self.parts.append(part)
        self.said.set()

    async def over(self):
        return await self._task


@pytest.fixture(scope="module")
def long():
    """A network whose context takes minutes to fill."""
    return slow_engine.network(context=ENDLESS)


def metrics(answered):
    lines = [line.rpartition(" ") for line in answered.body.decode().splitlines()]
    return {name: int(value) for name, _, value in lines if not name.startswith("#")}


async def load(client):
    found = metrics(await client.get("/metrics"))
    return found["gyre_serve_running"], found["gyre_serve_waiting"]


def test_a_path_that_is_not_there_is_said():
    async def scenario():
        async with serving.served() as client:
            return [
                await client.get("/generate"),
                await client.post("/v1/chat/completions"),
                await client.send("DELETE", "/health"),
            ]

    for one in asyncio.run(scenario()):
        assert (404, "NotFoundError") == (one.status, one.json["error"]["type"])


BAD = [
    (b"{", "truncated"),
    (b"[]", "Expected `object`"),
    (b"\xff", "malformed"),
    (b'{"x":' + b"[" * 100_000, "nested"),
    ({"input_ids": "1 2"}, "$.input_ids"),
    ({"input_ids": [1, -1]}, "$.input_ids["),
    ({"input_ids": [2**31]}, "$.input_ids["),
    ({"input_ids": []}, "input_ids: expected at least one id"),
    ({}, "input_ids: expected at least one id"),
    ({"text": "hello"}, "text: expected ids"),
    ({"text": "hello", "input_ids": [1]}, "text: expected text or input_ids, not both"),
    (generate([61]), "id 61 is outside the vocabulary of 61"),
    (generate([1] * 160), "a prompt of 160 tokens leaves no room in a context of 160"),
    (generate(temperature=-1), "temperature: expected 0 or more, found -1"),
    (generate(temperature="warm"), "$.sampling_params.temperature"),
    (generate(top_p=0), "top_p: expected within (0, 1], found 0"),
    (generate(top_k=0), "sampling_params.top_k: expected 1 or more, or -1 for all, found 0"),
    (generate(max_new_tokens=0), "max_tokens: expected 1 or more, found 0"),
    (generate(sampling_seed=2**64), "seed"),
    (generate(stop=["x"]), "stop strings need a tokenizer"),
    (generate(n=2), "sampling_params.n: expected 1, as this engine has nothing else, found 2"),
    (generate(min_p=0.1), "sampling_params.min_p: expected 0.0"),
    (generate(repetition_penalty=1.1), "sampling_params.repetition_penalty: expected 1.0"),
    (generate(frequency_penalty=1), "sampling_params.frequency_penalty"),
    (generate(logit_bias={"1": 5}), "sampling_params.logit_bias"),
    (generate(min_new_tokens=2), "sampling_params.min_new_tokens: expected 0, found 2"),
    (generate(regex="a*"), "sampling_params.regex: expected none"),
    (generate() | {"logprob_start_len": 0}, "logprob_start_len: expected -1"),
    (generate() | {"top_logprobs_num": 3}, "top_logprobs_num: expected none, found 3"),
]


def test_a_bad_request_is_told_where_and_what_was_expected():
    async def scenario():
        async with serving.served() as client:
            refused = [await client.post("/generate", body) for body, _ in BAD]
            return refused, await client.post("/generate", generate())

    refused, then = asyncio.run(scenario())

    for (_, expected), one in zip(BAD, refused, strict=True):
        assert expected in one.json["error"]["message"]
        assert (400, 400, "BadRequestError") == (
            one.status,
            one.json["error"]["code"],
            one.json["error"]["type"],
        )
    assert 200 == then.status


ANYTHING = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False),
    st.sampled_from([-1, 0, 1, 2**31, 2**63, 2**64, 1e-320, 1e308, "", "x", [], [0], [[1]], {}]),
)
PARAMS = ("temperature", "top_p", "top_k", "max_new_tokens", "stop", "stop_token_ids")
FIELDS = ("input_ids", "text", "rid", "stream", "return_logprob", "sampling_params")


@pytest.mark.slow
@settings(max_examples=40)
@given(
    st.lists(
        st.tuples(
            st.dictionaries(st.sampled_from(FIELDS), ANYTHING, max_size=2),
            st.dictionaries(st.sampled_from((*PARAMS, "sampling_seed")), ANYTHING, max_size=3),
        ),
        max_size=10,
    )
)
def test_whatever_it_is_sent_it_answers_or_refuses_and_serves_on(sent):
    async def scenario():
        async with serving.served(NETWORK, tokenizer=serving.Letters()) as client:
            bodies = [generate(**params) | fields for fields, params in sent]
            answers = [await client.post("/generate", body) for body in bodies]
            return answers, await client.post("/generate", generate()), await load(client)

    answers, then, left = asyncio.run(scenario())

    assert {one.status for one in answers} <= {200, 400}
    assert all(one.is_whole for one in answers)
    assert (200, (0, 0)) == (then.status, left)


def test_what_both_wires_do_not_know_is_not_looked_at():
    async def scenario():
        async with serving.served() as client:
            plain = await client.post("/generate", generate())
            odd = generate(custom_params={"x": 1}) | {"bootstrap_room": 7, "rid": "s"}
            return plain.json, (await client.post("/generate", odd)).json

    plain, odd = asyncio.run(scenario())

    assert plain["output_ids"] == odd["output_ids"]


def test_a_body_that_is_too_large_is_refused():
    async def scenario():
        limits = LimitsConfig(body_bytes=1000)
        async with serving.served(limits=limits) as client:
            return await client.post("/generate", generate([1] * 1000)), await client.post(
                "/kv/import", b"x" * 2**21
            )

    for one in asyncio.run(scenario()):
        assert (413, 413) == (one.status, one.json["error"]["code"])


def test_only_who_has_the_key_is_answered():
    async def scenario():
        async with serving.served(key="secret") as client:
            wrong = [
                await client.post("/generate", generate()),
                await client.post("/generate", generate(), headers=[("authorization", "secretx")]),
                await client.post("/pause_generation", headers=[("authorization", "Bearer é")]),
                await client.get("/v1/models"),
            ]
            header = [("authorization", "Bearer secret")]
            right = [
                await client.post("/generate", generate(), headers=header),
                await client.get("/health"),
                await client.get("/health_generate"),
                await client.get("/metrics"),
            ]
            return wrong, right

    wrong, right = asyncio.run(scenario())

    assert {401} == {one.status for one in wrong}
    assert {"AuthenticationError"} == {one.json["error"]["type"] for one in wrong}
    assert {200} == {one.status for one in right}


def test_a_client_that_goes_away_ends_its_request(long):
    async def scenario():
        async with serving.served(long, kv_tokens=ENDLESS) as client:
            streams = Started(client, endless("a"))
            waits = Started(client, generate(rid="b", max_new_tokens=ENDLESS))
            await streams.said.wait()
            streams.hang_up.set()
            waits.hang_up.set()
            over = [await streams.over(), await waits.over()]
            return over, await load(client), metrics(await client.get("/metrics"))

    (streams, waits), left, counted = asyncio.run(scenario())

    assert not streams.is_whole
    assert waits.status is None
    assert (0, 0) == left
    assert 1 == counted['gyre_serve_requests_total{path="/generate",status="499"}']


def test_an_abort_ends_a_stream_with_what_it_has(long):
    async def scenario():
        async with serving.served(long, kv_tokens=ENDLESS) as client:
            one, other = Started(client, endless("a")), Started(client, endless("ab"))
            await one.said.wait()
            await other.said.wait()
            aborted = await client.post("/abort_request", {"rid": "a"})
            events = (await one.over()).events
            left = await load(client)
            await client.post("/abort_request", {"abort_all": True})
            rest = (await other.over()).events
            unknown = await client.post("/abort_request", {"rid": "nobody"})
            none = await client.post("/abort_request", {})
            return aborted, events, left, rest, unknown, none

    aborted, events, left, rest, unknown, none = asyncio.run(scenario())

    assert [200, 200, 400] == [aborted.status, unknown.status, none.status]
    assert (1, 0) == left
    for told in (events, rest):
        ids = [token for event in told for token in event["output_ids"]]
        assert "abort" == told[-1]["meta_info"]["finish_reason"]["type"]
        assert len(ids) == told[-1]["meta_info"]["completion_tokens"] > 0


def test_an_id_is_taken_until_its_request_is_over(long):
    async def scenario():
        async with serving.served(long, kv_tokens=ENDLESS) as client:
            first = Started(client, endless("a"))
            await first.said.wait()
            second = await client.post("/generate", generate(rid="a"))
            await client.post("/abort_request", {"abort_all": True})
            return (
                second,
                (await first.over()).events,
                await client.post("/generate", generate(rid="a")),
            )

    second, first, third = asyncio.run(scenario())

    assert 400 == second.status
    assert "another ask with this id is not over" in second.json["error"]["message"]
    assert "abort" == first[-1]["meta_info"]["finish_reason"]["type"]
    assert 200 == third.status


def test_a_pause_holds_requests_and_they_go_on_unchanged():
    async def scenario():
        async with serving.served() as client:
            whole = await client.post("/generate", generate())
            paused = await client.post("/pause_generation", {"mode": "in_place"})
            held = asyncio.create_task(client.post("/generate", generate(rid="held")))
            while await load(client) != (0, 1):
                pass
            health = await client.get("/health")
            resumed = await client.post("/continue_generation")
            return whole.json, paused, health, resumed, (await held).json

    whole, paused, health, resumed, held = asyncio.run(scenario())

    assert ["ok", "ok"] == [paused.json["status"], resumed.json["status"]]
    assert (200, "paused") == (health.status, health.json["detail"])
    assert whole["output_ids"] == held["output_ids"]


def test_a_pause_ends_requests_unless_told_otherwise(long):
    async def scenario():
        async with serving.served(long, kv_tokens=ENDLESS) as client:
            started = Started(client, endless())
            await started.said.wait()
            await client.post("/pause_generation")
            events = (await started.over()).events
            wrong = await client.post("/pause_generation", {"mode": "maybe"})
            return events[-1], wrong

    last, wrong = asyncio.run(scenario())

    assert "abort" == last["meta_info"]["finish_reason"]["type"]
    assert (400, True) == (wrong.status, "$.mode" in wrong.json["error"]["message"])


def test_health_that_generates_says_when_no_token_comes():
    async def scenario():
        async with serving.served(patience_s=0.05) as client:
            await client.post("/pause_generation")
            paused = await client.get("/health_generate")
            return paused, await load(client)

    paused, left = asyncio.run(scenario())

    assert (503, "no token within 0.05 s paused") == (
        paused.status,
        paused.json["error"]["message"],
    )
    assert (0, 0) == left


def test_new_weights_sample_from_then_on_under_their_version(tmp_path):
    new = slow_engine.network(seed=9)
    folder = serving.write_model(tmp_path, new)

    async def scenario():
        async with serving.served() as client:
            old = await client.post("/generate", generate())
            orders = [
                {"weight_version": "7"},
                {"weight_version": 8, "flush_cache": False},
                {},
            ]
            versions = []
            for order in orders:
                done = await client.post(
                    "/update_weights_from_disk", order | {"model_path": str(folder)}
                )
                assert done.json["success"]
                versions.append((await client.get("/get_model_info")).json["weight_version"])
            return old.json, versions, (await client.post("/generate", generate())).json

    old, versions, found = asyncio.run(scenario())
    wanted = slow_engine.expected(new, slow_engine.ask(PROMPT, "r"))

    assert ["7", "8", "9"] == versions
    assert "0" == old["meta_info"]["weight_version"]
    assert old["output_ids"] != wanted.ids
    assert wanted.ids == found["output_ids"]
    assert [{"version": "9", "start": 0, "end": 12}] == found["meta_info"]["weight_versions"]


def test_tokens_of_one_request_say_which_weights_sampled_them(long, tmp_path):
    folder = serving.write_model(tmp_path, slow_engine.network(seed=9, context=ENDLESS))

    async def scenario():
        async with serving.served(
            slow_engine.network(context=ENDLESS), kv_tokens=ENDLESS
        ) as client:
            started = Started(client, endless())
            await started.said.wait()
            order = {"model_path": str(folder), "weight_version": "1"}
            await client.post("/update_weights_from_disk", order)
            # Tokens that were sampled before may be told after the order was answered.
            of_new = b'"weight_version":"1"'
            await until(lambda: any(of_new in part for part in started.parts), "a new token")
            await client.post("/abort_request", {"abort_all": True})
            return (await started.over()).events

    events = asyncio.run(scenario())
    said = [event["meta_info"]["weight_version"] for event in events for _ in event["output_ids"]]
    first, second = events[-1]["meta_info"]["weight_versions"]

    assert {"0", "1"} == set(said)
    assert sorted(said) == said
    assert ("0", 0, said.count("0")) == (first["version"], first["start"], first["end"])
    assert ("1", said.count("0"), len(said)) == (second["version"], second["start"], second["end"])


def test_weights_that_cannot_be_used_change_nothing(tmp_path):
    other = serving.write_model(tmp_path / "other", slow_engine.network("llama"))
    broken = serving.write_model(tmp_path / "broken", slow_engine.network())
    (broken / "model.safetensors").write_bytes(b"nothing")
    orders = [
        {"model_path": str(tmp_path / "nowhere")},
        {"model_path": str(other), "weight_version": "3"},
        {"model_path": str(broken), "weight_version": "3"},
        {"model_path": str(other), "weight_version": "default"},
        {"weight_version": "3"},
    ]

    async def scenario():
        async with serving.served() as client:
            before = await client.post("/generate", generate())
            refused = [await client.post("/update_weights_from_disk", one) for one in orders]
            return before.json, refused, (await client.post("/generate", generate())).json

    before, refused, after = asyncio.run(scenario())

    assert {400} == {one.status for one in refused}
    assert {False} == {one.json["success"] for one in refused}
    assert all(one.json["message"] == one.json["error"]["message"] for one in refused)
    # Log-probabilities may differ by rounding: the second time the prompt is found in the cache.
    assert before["output_ids"] == after["output_ids"]
    assert before["meta_info"]["weight_version"] == after["meta_info"]["weight_version"]


def test_an_engine_at_rest_refuses_and_serves_as_before_when_awake(long):
    async def scenario():
        async with serving.served(long, kv_tokens=ENDLESS) as client:
            before = await client.post("/generate", generate())
            started = Started(client, endless())
            await started.said.wait()
            wrong = await client.post("/release_memory_occupation", {"tags": ["weights"]})
            done = await client.post("/release_memory_occupation")
            ended = (await started.over()).events[-1]
            resting = [
                await client.post("/generate", generate()),
                await client.get("/health"),
                await client.get("/health_generate"),
                await client.post("/kv/pin", {"input_ids": PROMPT}),
            ]
            first = await client.post("/resume_memory_occupation", {"tags": ["weights"]})
            still = await client.get("/health")
            last = await client.post("/resume_memory_occupation", {"tags": ["kv_cache"]})
            awake = await client.get("/health")
            after = await client.post("/generate", generate())
            return wrong, done, ended, resting, [first, last], still, awake, before, after

    wrong, done, ended, resting, woken, still, awake, before, after = asyncio.run(scenario())

    assert (400, 200) == (wrong.status, done.status)
    assert "abort" == ended["meta_info"]["finish_reason"]["type"]
    assert [503] * 4 == [one.status for one in resting]
    assert "resting" == resting[1].json["error"]["message"]
    assert [200, 200] == [one.status for one in woken]
    assert (503, 200) == (still.status, awake.status)
    assert before.json == after.json


def test_stopping_ends_requests_and_takes_no_others(long):
    async def scenario():
        async with serving.served(long, kv_tokens=ENDLESS) as client:
            started = Started(client, endless())
            await started.said.wait()
            await client.server.stop()
            ended = (await started.over()).events[-1]
            return ended, await client.post("/generate", generate()), await client.get("/health")

    ended, refused, health = asyncio.run(scenario())

    assert "abort" == ended["meta_info"]["finish_reason"]["type"]
    assert (503, 503) == (refused.status, health.status)


def test_a_failure_in_a_stream_that_has_begun_is_its_last_event(long):
    async def scenario():
        async with serving.served(long, kv_tokens=ENDLESS) as client:
            started = Started(client, endless())
            await started.said.wait()
            await client.engine.close()
            return await started.over(), await client.post("/generate", generate())

    streamed, refused = asyncio.run(scenario())
    last = streamed.events[-1]["error"]

    assert (200, 503, True) == (streamed.status, last["code"], streamed.is_whole)
    assert "closed" in last["message"]
    assert 503 == refused.status


def test_what_it_counts_is_what_the_page_says():
    async def scenario():
        async with serving.served() as client:
            await client.post("/generate", generate())
            await client.post("/v1/completions", {"prompt": PROMPT, "max_tokens": 3})
            await client.get("/no/such/path")
            return metrics(await client.get("/metrics"))

    found = asyncio.run(scenario())
    page = (ROOT / "docs" / "engine.md").read_text()

    assert set(re.findall(r"`(gyre_serve_[a-z_]+)`", page)) == {
        name.partition("{")[0] for name in found
    }
    assert 1 == found['gyre_serve_requests_total{path="other",status="404"}']
    assert 2 * len(PROMPT) == found["gyre_serve_prompt_tokens_total"]
    assert 12 + 3 == found["gyre_serve_output_tokens_total"]
    assert (256, 256) == (found["gyre_serve_blocks"], found["gyre_serve_free_blocks"])
    assert (0, 0) == (found["gyre_serve_running"], found["gyre_serve_waiting"])
