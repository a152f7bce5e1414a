"""Whatever a program sends to the three dialects: an answer in their shape, a proxy that lives."""

import http.client
import json
import re
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from tests.security.hostile import spoilt
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.slow

PATHS = {
    "messages": "/v1/messages",
    "chat": "/v1/chat/completions",
    "responses": "/v1/responses",
    "count": "/v1/messages/count_tokens",
}
SCHEMA = {"type": "object", "properties": {"command": {"type": "string"}}}
CALL = {"id": "c", "type": "function", "function": {"name": "run", "arguments": '{"command": "x"}'}}
MESSAGES = {
    "model": "m",
    "max_tokens": 40,
    "system": [{"type": "text", "text": "You help.", "cache_control": {"type": "ephemeral"}}],
    "messages": [
        {"role": "user", "content": "hi"},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "well", "signature": "s"},
                {"type": "text", "text": "so"},
                {"type": "tool_use", "id": "c", "name": "run", "input": {"command": "x"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {
                    "type": "tool_result",
                    "tool_use_id": "c",
                    "content": [{"type": "text", "text": "done"}],
                }
            ],
        },
    ],
    "tools": [{"name": "run", "description": "runs", "input_schema": SCHEMA}],
    "tool_choice": {"type": "auto"},
    "thinking": {"type": "enabled", "budget_tokens": 9},
    "stop_sequences": ["END"],
    "temperature": 0.5,
    "top_k": 3,
    "metadata": {"user_id": '{"session_id": "s", "more": {"x": 1}}'},
}
CHAT = {
    "model": "m",
    "max_tokens": 40,
    "n": 1,
    "messages": [
        {"role": "system", "content": "You help."},
        {"role": "user", "content": [{"type": "text", "text": "hi"}]},
        {"role": "assistant", "content": None, "reasoning_content": "well", "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "c", "content": "done"},
    ],
    "tools": [{"type": "function", "function": {"name": "run", "parameters": SCHEMA}}],
    "tool_choice": {"type": "function", "function": {"name": "run"}},
    "response_format": {"type": "text"},
    "chat_template_kwargs": {"enable_thinking": True},
    "stream_options": {"include_usage": True},
    "stop": ["END"],
    "seed": 4,
    "metadata": {"a": {"b": {"c": "d"}}},
}
RESPONSES = {
    "model": "m",
    "max_output_tokens": 40,
    "instructions": "You help.",
    "input": [
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "well"}]},
        {"type": "function_call", "call_id": "c", "name": "run", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "done"},
        {"type": "custom_tool_call", "call_id": "d", "name": "patch", "input": "x"},
        {"type": "custom_tool_call_output", "call_id": "d", "output": "done"},
    ],
    "tools": [
        {"type": "function", "name": "run", "parameters": SCHEMA},
        {"type": "custom", "name": "patch", "format": {"type": "grammar", "definition": "x"}},
        {"type": "namespace", "name": "n", "tools": [{"type": "function", "name": "f"}]},
    ],
    "reasoning": {"effort": "low"},
    "text": {"format": {"type": "text"}},
    "client_metadata": {"x-codex-turn-metadata": '{"thread": "t"}'},
    "metadata": {"a": "b"},
}
WHOLE = {"messages": MESSAGES, "chat": CHAT, "responses": RESPONSES, "count": MESSAGES}
MOST_GROWTH_KB = 64 * 1024


class Harness:
    """Sends bodies over one connection, and reads what comes back."""

    def __init__(self, proxy, key):
        self.proxy = proxy
        self._key = key
        self._connection = http.client.HTTPConnection("127.0.0.1", proxy.port, timeout=PATIENCE_S)

    def send(self, path, body):
        headers = {"authorization": f"Bearer {self._key}", "content-type": "application/json"}
        self._connection.request("POST", path, body=body, headers=headers)
        answer = self._connection.getresponse()
        return answer.status, answer.getheader("content-type"), answer.read()

    def resident_kb(self):
        status = Path(f"/proc/{self.proxy.pid}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+) kB", status)[1])

    def close(self):
        self._connection.close()


@pytest.fixture(scope="module")
def proxy(staged):
    options = ("--calls-per-minute", "10000000", "--body-bytes", str(2**20))
    return staged.proxy(staged.engine("short", chunk_tokens=64), options=options)


@pytest.fixture(scope="module")
def key(proxy):
    return proxy.open("fuzzed").key


@pytest.fixture
def harness(proxy, key):
    with closing(Harness(proxy, key)) as made:
        yield made


def shape(dialect, kind, data):
    """Whether an error, or a whole answer, is as the dialect has it."""
    if kind.startswith("text/event-stream"):
        return data.endswith(b"\n\n")
    said = json.loads(data)
    if "error" not in said or said["error"] is None:
        return True
    error = said["error"]
    is_named = isinstance(error["message"], str) and isinstance(error["type"], str)
    return is_named and (said.get("type") == "error" or dialect in ("chat", "responses"))


@pytest.mark.parametrize("dialect", PATHS)
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_a_spoilt_body_gets_an_answer_in_the_shape_of_its_dialect(dialect, stream, harness):
    """FAULTS 34, 36: never a failure of the proxy's own, never another dialect's words."""
    before = harness.resident_kb()

    @given(body=spoilt([WHOLE[dialect] | {"stream": stream}]))
    def sent(body):
        had = harness.resident_kb()
        status, kind, data = harness.send(PATHS[dialect], body)
        assert status < 500, (status, data)
        assert shape(dialect, kind, data), (status, data)
        # Here too, so that a body that takes all of it is named.
        assert harness.resident_kb() - had < MOST_GROWTH_KB

    sent()
    assert harness.resident_kb() - before < MOST_GROWTH_KB
    status, _, _ = harness.send(PATHS[dialect], json.dumps(WHOLE[dialect]))
    assert 200 == status
