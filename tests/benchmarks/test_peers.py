"""The instruments of the benchmarks: clocks, traces, conversations, and the journal."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from benchmarks.peers import processes, syncs
from benchmarks.peers.load import Answer, Conversation, message_of
from benchmarks.peers.parse_hash_journal import Journal
from benchmarks.peers.replies import NUM_REPLIES, said
from benchmarks.peers.scenarios import quantiles
from benchmarks.peers.upstream import Canned, canned, repeated_prompt

BUSY = """
import subprocess, sys, time
def burn(seconds):
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass
burn(0.15)
child = subprocess.Popen([sys.executable, "-c", "import time\\nend = time.process_time() + 0.15\\n"
    "while time.process_time() < end: pass\\nprint(time.process_time(), flush=True)\\ninput()"],
    stdin=subprocess.PIPE, stdout=subprocess.PIPE)
used = float(child.stdout.readline())
print(used + time.process_time(), flush=True)
sys.stdin.readline()
"""


@contextmanager
def busy() -> Iterator[tuple[int, float]]:
    """A process that has used 0.15 CPU seconds, and a child of it; what they say they have."""
    process = subprocess.Popen(
        [sys.executable, "-c", BUSY], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield process.pid, float(process.stdout.readline())
    finally:
        process.stdin.close()
        process.wait()
        process.stdout.close()


def test_cpu_seconds_cover_the_process_and_its_children() -> None:
    with busy() as (pid, said_s):
        used = processes.cpu(pid)

        assert 2 == len(processes.tree(pid))
        # The kernel counts in ticks, and a little more is used after it was said.
        assert 0.30 <= said_s
        assert said_s - 0.05 <= used.total_s <= 1.5 * said_s
        assert abs(used.total_s - used.user_s - used.system_s) <= 0.05


def test_an_idle_process_is_settled_at_once() -> None:
    with busy() as (pid, _):
        first = processes.settled_cpu(pid, most_s=5.0)
        second = processes.settled_cpu(pid, most_s=5.0)

        assert second.since(first).total_s < 0.02


def test_a_trace_tells_a_reply_that_left_before_its_record_was_durable() -> None:
    synced = [
        '7 1.0 pwrite64(5</r/x.calls>, "record"..., 900, 8) = 900',
        "9 1.1 fdatasync(5</r/x.calls> <unfinished ...>",
        "9 1.2 <... fdatasync resumed>) = 0",
        '7 1.3 write(11<socket:[1]>, "HTTP/1.1 200 OK\\r\\n"..., 300) = 300',
    ]
    early = [
        '7 2.0 pwrite64(5</r/x.calls>, "record"..., 900, 908) = 900',
        "9 2.1 fdatasync(5</r/x.calls> <unfinished ...>",
        '7 2.2 write(11<socket:[1]>, "HTTP/1.1 200 OK\\r\\n"..., 300) = 300',
        "9 2.3 <... fdatasync resumed>) = 0",
    ]

    assert {"replies": 1, "syncs": 1, "log_writes": 1, "unsynced": 0} == syncs.read(synced)
    assert {"replies": 2, "syncs": 2, "log_writes": 2, "unsynced": 1} == syncs.read(synced + early)


def test_a_sync_that_began_before_a_write_does_not_cover_it() -> None:
    lines = [
        "9 1.0 fdatasync(5</r/x.calls> <unfinished ...>",
        '7 1.1 pwrite64(5</r/x.calls>, "record"..., 900, 8) = 900',
        "9 1.2 <... fdatasync resumed>) = 0",
        '7 1.3 write(11<socket:[1]>, "HTTP/1.1 200 OK\\r\\n"..., 300) = 300',
    ]

    assert 1 == syncs.read(lines)["unsynced"]


def test_a_conversation_keeps_its_history_and_echoes_replies() -> None:
    conversation = Conversation(tools=True, stream=False)
    conversation.ask()
    before = json.loads(conversation.body)["messages"]
    call = {"id": "c1", "type": "function", "function": {"name": "shell", "arguments": "{}"}}
    reply = {"role": "assistant", "content": "now", "tool_calls": [call]}

    conversation.go_on(reply, output_chars=50)

    after = json.loads(conversation.body)["messages"]
    assert ["system", "user"] == [message["role"] for message in before]
    assert before == after[:2]
    assert reply == after[2]
    assert ("tool", "c1", 50) == (
        after[3]["role"],
        after[3]["tool_call_id"],
        len(after[3]["content"]),
    )


def test_a_filled_history_has_the_size_that_was_asked_for() -> None:
    conversation = Conversation(tools=True, stream=False)
    conversation.fill(200_000, output_chars=4_800)

    assert 200_000 <= len(conversation.body) <= 210_000
    assert json.loads(conversation.body)["tools"]


def test_a_refused_call_is_an_error_and_not_a_message() -> None:
    refused = Answer(status=500, body=b"no", first_byte_s=0.0, total_s=0.0)

    with pytest.raises(RuntimeError, match="status 500"):
        message_of(refused)


def test_replies_differ_through_the_whole_cycle() -> None:
    for tools in (False, True):
        assert NUM_REPLIES == len(
            {said(index, tools=tools).sampled for index in range(NUM_REPLIES)}
        )


def one_canned() -> Canned:
    return canned(said(0, tools=False), list(range(100, 164)), chunk_tokens=8)


def test_the_mock_engine_repeats_the_prompt_it_was_asked_with() -> None:
    body = b'{"input_ids":[5,6,7],"stream":true,"return_prompt_token_ids":true}'
    (*events, last, done) = [
        event.replace(*repeated_prompt(body)) for event in one_canned().generate_events
    ]

    first, final = (json.loads(event.removeprefix(b"data: ")) for event in (events[0], last))
    assert b"data: [DONE]\n\n" == done
    assert [5, 6, 7] == first["prompt_token_ids"]
    assert 3 == final["meta_info"]["prompt_tokens"]
    assert list(range(100, 164)) == final["output_ids"]
    assert {"type": "stop", "matched": 163} == final["meta_info"]["finish_reason"]


def test_a_prompt_that_is_not_asked_for_is_only_counted() -> None:
    whole = one_canned().generate.replace(*repeated_prompt(b'{"input_ids":[5,6]}'))

    assert "prompt_token_ids" not in json.loads(whole)
    assert 2 == json.loads(whole)["meta_info"]["prompt_tokens"]


def test_the_stream_of_a_chat_spells_the_whole_reply() -> None:
    events = one_canned().chat_events[:-1]
    chunks = [json.loads(event.removeprefix(b"data: ")) for event in events]

    text = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks)
    assert said(0, tools=False).text == text
    assert len(chunks) >= 8


def test_appends_that_wait_together_share_writes_and_are_all_on_file(tmp_path: Path) -> None:
    path = tmp_path / "journal"

    async def many() -> None:
        journal = Journal(path)
        await asyncio.gather(*(journal.append(b"%03d" % number, b"\n") for number in range(700)))
        journal.close()

    asyncio.run(many())

    assert [b"%03d" % number for number in range(700)] == path.read_bytes().splitlines()


def test_quantiles_are_taken_from_the_values_themselves() -> None:
    found = quantiles([0.001 * number for number in range(1, 102)])

    assert {"p10": 0.011, "p50": 0.051, "p90": 0.091, "p99": 0.1, "max": 0.101} == found
