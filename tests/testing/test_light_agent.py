"""The light agent: its turns, its patience with servers that refuse, and its work at a proxy."""

import json
import os
import socket
import subprocess
import sys
import threading
from contextlib import contextmanager

import pytest
from tests.waiting import PATIENCE_S

from gyre.storage.call_log import logs, read
from gyre.testing import light_agent
from gyre.testing.processes import EngineProcess, StandaloneProxy
from gyre.testing.script import Script, ScriptedReply
from gyre.testing.tokenizer import write_tokenizer
from gyre.trajectory.tree import grow

TURNS = [{"reply_s": 0.0, "tool_s": 0.01, "tool_words": 3}, {"reply_s": 0.25, "words": 2}, {}]


def counting():
    """A script that says how often it has spoken."""

    def rule(conversation):
        said = sum(turn.role == "assistant" for turn in conversation.turns)
        return ScriptedReply(text=f"reply {said}")

    return Script([rule])


def answer(status, body=b"{}"):
    head = f"HTTP/1.1 {status} said\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


def completion(text):
    return answer(200, json.dumps({"choices": [{"message": {"content": text}}]}).encode())


@contextmanager
def server(*answers):
    """Answers each connection with the next bytes; the bodies it was sent."""
    bodies = []
    listener = socket.create_server(("127.0.0.1", 0))

    def serve():
        for data in answers:
            connection, _ = listener.accept()
            with connection, connection.makefile("rb") as lines:
                length = 0
                while (line := lines.readline()).strip():
                    if line.lower().startswith(b"content-length:"):
                        length = int(line.split(b":")[1])
                bodies.append(lines.read(length))
                connection.sendall(data)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield light_agent.Address(f"http://127.0.0.1:{listener.getsockname()[1]}/v1"), bodies
    finally:
        thread.join(PATIENCE_S)
        listener.close()


def test_a_call_is_tried_again_where_clients_try_again():
    cut = completion("late")[:-4]
    refusals = (answer(503), answer(429), answer(529), b"", cut)
    with server(*refusals, completion("at last")) as (address, bodies):
        reply = light_agent.call(address, "key", [{"role": "user", "content": "go"}], (0.0,) * 5)

    assert "at last" == reply
    assert (6, 1) == (len(bodies), len(set(bodies)))


@pytest.mark.parametrize("wrong", [answer(400, b"too long"), answer(401), answer(200, b"no JSON")])
def test_what_will_not_change_is_not_tried_again(wrong):
    with server(wrong) as (address, bodies), pytest.raises(light_agent.CallRefused):
        light_agent.call(address, "key", [])

    assert 1 == len(bodies)


def test_patience_ends_and_says_what_was_found():
    with (
        server(*[answer(503, b"busy")] * 4) as (address, _),
        pytest.raises(light_agent.CallRefused, match="503: busy"),
    ):
        light_agent.call(address, "key", [], (0.0,) * 3)


def test_a_turn_says_how_long_its_reply_takes():
    assert '{"reply_s": 0.350000}' == light_agent.asked({"reply_s": 0.35})
    assert '{"reply_s": 0.000000, "words": 7}' == light_agent.asked({"words": 7})


@pytest.mark.parametrize(("turn", "expected"), [({}, None), ({"tokens": 40}, 40)])
def test_a_turn_may_say_how_many_tokens_its_reply_has_at_most(
    tmp_path, monkeypatch, turn, expected
):
    monkeypatch.chdir(tmp_path)
    with server(completion("done")) as (address, bodies):
        light_agent.work([turn], address, "key")

    assert expected == json.loads(bodies[0]).get("max_tokens")


def test_members_of_a_group_have_turns_of_their_own():
    members = [[{"reply_s": one}] for one in range(3)]
    instruction = json.dumps({"members": members})
    names = ["g4-0", "g4-1", "g4-2", "g4-3", "none"]
    found = [light_agent.turns_of(instruction, name) for name in names]

    assert [*members, members[0]] == found[:4]
    assert found[4] in members
    assert TURNS == light_agent.turns_of(json.dumps(TURNS), "g4-1")


@pytest.mark.parametrize(
    ("instruction", "said"),
    [
        ("count the words", "expected JSON"),
        ("7", "expected a list of turns"),
        ('{"members": []}', "expected a list of turns"),
        ('[{"reply": 1}]', "turn 0: expected an object of reply_s, tokens, tool_s"),
        ('[{}, {"tool_s": -1}]', "turn 1: tool_s: expected a number of 0 or more, found -1"),
        ('[{"tool_s": "1"}]', "turn 0: tool_s"),
    ],
)
def test_an_instruction_that_cannot_be_followed_is_said_to_be_one(instruction, said):
    with pytest.raises(light_agent.UnusableTask, match=said):
        light_agent.turns_of(instruction, "")


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://127.0.0.1:8400/exec/g1-2/v1", ("127.0.0.1", 8400, "/exec/g1-2/v1", "g1-2")),
        ("http://[::1]:80/v1/", ("::1", 80, "/v1", "")),
        ("http://host", ("host", 80, "", "")),
    ],
)
def test_an_address_holds_the_name_of_the_execution(url, expected):
    found = light_agent.Address(url)

    assert expected == (found.host, found.port, found.path, found.execution)


def test_another_kind_of_address_is_refused():
    with pytest.raises(light_agent.UnusableTask, match="http://HOST:PORT/PATH"):
        light_agent.Address("https://127.0.0.1/v1")


def start(folder, url, key, turns):
    """The agent as a harness starts it: without site-packages, in a workspace of its own."""
    folder.mkdir()
    return subprocess.Popen(
        [sys.executable, "-S", "-E", light_agent.__file__, turns],
        cwd=folder,
        env={"PATH": os.environ["PATH"], "OPENAI_BASE_URL": url, "OPENAI_API_KEY": key},
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(agent):
    _, said = agent.communicate(timeout=PATIENCE_S)
    return agent.returncode, said


@pytest.mark.slow
def test_without_an_endpoint_or_a_usable_one_it_says_so(tmp_path):
    one = start(tmp_path / "a", "ftp://nowhere", "k", "[{}]")
    two = start(tmp_path / "b", "http://127.0.0.1:1", "k", "what?")

    assert (2, True) == ((found := ended(one))[0], "OPENAI_BASE_URL" in found[1])
    assert (2, True) == ((found := ended(two))[0], "instruction" in found[1])


@pytest.mark.slow
def test_agents_at_a_proxy_leave_their_replies_and_one_branch_each(tmp_path):
    model = tmp_path / "model"
    tokenizer = write_tokenizer(model) / "tokenizer.json"
    with (
        EngineProcess(
            "sglang", script=f"{__file__}:counting", tokenizer=tokenizer, log=tmp_path / "asks"
        ) as engine,
        StandaloneProxy(
            tmp_path / "run",
            model=model,
            engines=[engine.address],
            options=("--family", "qwen3"),
        ) as proxy,
    ):
        opened = [proxy.open(f"g0-{member}") for member in range(2)]
        turns = json.dumps({"members": [TURNS, TURNS[:1]]})
        agents = [start(tmp_path / one.id, f"{one.url}/v1", one.key, turns) for one in opened]
        statuses = [ended(agent) for agent in agents]
    trees = [grow(read(log).records) for log in logs(tmp_path / "run")]
    replies = [(tmp_path / one.id / "replies.txt").read_text() for one in opened]

    assert [(0, "")] * 2 == statuses
    assert ["reply 0\nreply 1\nreply 2\n", "reply 0\n"] == replies
    assert [1, 3] == sorted(len(tree.calls) for tree in trees)
    assert [1, 1] == [len(tree.leaves()) for tree in trees]
