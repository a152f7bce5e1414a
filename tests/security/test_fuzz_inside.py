"""Whatever is sent to a control with the right token: refused or done, and never a crash."""

import asyncio
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.security.hostile import broken, spoilt, strings, text, values
from tests.security.inside import BEARER, ENDPOINTS, inside
from tests.waiting import PATIENCE_S

from gyre.rollout.facts import FactEntry
from gyre.types.outcomes import Closed, Outcome

pytestmark = pytest.mark.slow

FACT = Closed(outcome=Outcome.VALID, score=0.5, reason=None)
ASK = {
    "rid": "r",
    "input_ids": [1, 2, 3],
    "sampling_params": {"max_new_tokens": 2, "temperature": 0.0, "top_k": -1},
    "return_logprob": True,
    "stream": True,
}
COMPLETION = {
    "model": "m",
    "prompt": [1, 2, 3],
    "max_tokens": 2,
    "temperature": 0.0,
    "logprobs": 0,
    "stop": ["x"],
    "seed": 4,
    "stream": True,
    "stream_options": {"include_usage": True},
}
WEIGHTS = {"model_path": "/nowhere", "weight_version": "7", "flush_cache": False}
LOAD = {"folder": "/nowhere", "version": 7, "digest": "d", "keep_kv": True}
MEMBERS = {"epoch": 0, "members": [0, 1], "version": 1, "leases": {"0": [1]}, "order": [0]}
BODIES = {
    "/gyre/executions": [{"id": "fresh"}, {}],
    "/gyre/routes": [{"version": 1, "routes": {"x": "e", "y": None}}],
    "/facts": [{"execution": "x"} | json.loads(FactEntry(sequence=3, at=1.0, fact=FACT).encode())],
    "/generate": [ASK, ASK | {"stream": False}],
    "/v1/completions": [COMPLETION, COMPLETION | {"stream": False, "prompt": "text"}],
    "/abort_request": [{"rid": "r"}, {"abort_all": True}],
    "/pause_generation": [{"mode": "retract"}],
    "/update_weights_from_disk": [WEIGHTS],
    "/release_memory_occupation": [{"tags": ["kv_cache", "weights"]}],
    "/resume_memory_occupation": [{"tags": ["kv_cache"]}],
    "/kv/pin": [{"input_ids": [1, 2, 3]}, {"rid": "r"}],
    "/kv/release": [{"pin": 1}],
    "/kv/export": [{"pin": 1}],
    "/kv/put": [{"pin": 1, "to": "name"}],
    "/kv/take": [{"from": "name"}],
    "/cell/leave": [{"keep_sum": True}],
    "/cell/offer": [{"folder": "/nowhere", "version": 1}],
    "/cell/load": [LOAD],
    "/cell/save": [{"folder": "/nowhere"}],
    "/cell/meet": [{"epoch": 0, "order": [0]}],
}
ANY = [MEMBERS]
SILENCING = {"/pause_generation", "/release_memory_occupation"}


@pytest.fixture
def asked(tmp_path):
    """Sends one request and gives its answer; whatever escapes from a listener is raised."""
    with asyncio.Runner() as runner:
        entered = inside(tmp_path)
        listeners = runner.run(entered.__aenter__())

        def ask(listener, method, path, body=b"", headers=()):
            client = listeners.of(listener)
            sent = client.send(method, path, body, headers=[BEARER, *headers])
            return runner.run(asyncio.wait_for(sent, PATIENCE_S))

        try:
            yield ask
        finally:
            runner.run(entered.__aexit__(None, None, None))


def is_told(answer):
    """A refusal says what was wrong, in the words of its listener."""
    said = answer.json
    return bool(said["message"] if "kind" in said else said["error"]["message"])


@pytest.mark.parametrize("listener", ENDPOINTS)
def test_a_spoilt_order_is_refused_or_done(listener, asked):
    anything = values.map(text).map(str.encode) | st.binary()

    @given(st.data())
    def sent(data):
        method, path = data.draw(st.sampled_from(ENDPOINTS[listener]))
        body = data.draw(spoilt(BODIES.get(path, ANY)) | anything)
        answer = asked(listener, method, path, body)
        assert answer.is_whole
        assert answer.status == 200 or is_told(answer), (answer.status, answer.body)
        # A 500 of a cell names an error of ours; any other would have been raised here.
        assert answer.status < 500 or answer.status == 503 or listener == "cell"
        if path in SILENCING and answer.status == 200:
            asked("engine", "POST", "/resume_memory_occupation")
            asked("engine", "POST", "/continue_generation")

    sent()
    assert 200 == asked("engine", "GET", "/health_generate").status


def of_path(name):
    """As a path can hold it, once it is decoded, and as nobody is called."""
    return name.encode("utf-8", "replace").decode() + "-nobody"


def test_a_spoilt_name_in_a_path_is_refused(asked):
    @given(name=strings.map(of_path) | st.text(alphabet="x", min_size=240, max_size=400))
    def sent(name):
        for path in (f"/gyre/executions/{name}/close", f"/gyre/engines/{name}/drain"):
            answer = asked("proxy", "POST", path)
            assert 404 == answer.status
            assert is_told(answer)

    sent()


def test_a_spoilt_header_of_a_claim_is_refused(asked):
    @given(about=values.map(text) | st.text(alphabet=st.characters(max_codepoint=255)))
    def sent(about):
        answer = asked("cell", "POST", "/cell/train", b"", [("x-gyre-claim", about)])
        assert 400 == answer.status
        assert is_told(answer)

    sent()


def test_spoilt_cache_blocks_are_refused(asked):
    prompt = {"input_ids": list(range(1, 13))}

    @given(data=st.data())
    def sent(data):
        ask = ASK | prompt | {"rid": "whole", "stream": False}
        assert 200 == asked("engine", "POST", "/generate", ask).status
        found = asked("engine", "POST", "/kv/pin", prompt)
        pin = {"pin": found.json["pin"]}
        whole = asked("engine", "POST", "/kv/export", pin).body
        answer = asked("engine", "POST", "/kv/import", data.draw(broken(whole)))
        if answer.status == 200:
            asked("engine", "POST", "/kv/release", {"pin": answer.json["pin"]})
        asked("engine", "POST", "/kv/release", pin)

        # 503: blocks of weights that this engine does not have yet.
        assert answer.status in (200, 400, 503)
        assert 200 == asked("engine", "GET", "/health_generate").status

    sent()
