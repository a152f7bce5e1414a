"""What a request is refused for, and where the refusal says it is."""

import asyncio
import json

import pytest
from tests.proxy.test_call_handler import application, post

from gyre.storage.call_log import logs, read
from gyre.storage.wal import WriteAheadLog
from gyre.types.call_records import CallClosed
from gyre.types.errors import GyreError, Overloaded

PATHS = {"messages": "/v1/messages", "chat": "/v1/chat/completions", "responses": "/v1/responses"}
FIELDS = {"messages": "messages", "chat": "messages", "responses": "input"}


def refused(tmp_path, path, body):
    async def run():
        async with application(tmp_path, WriteAheadLog(tmp_path)) as (app, _, key):
            return await post(app, path, key, body)

    status, said = asyncio.run(run())
    return status, json.loads(said)["error"]["message"]


@pytest.mark.parametrize("dialect", PATHS)
def test_a_conversation_without_a_message_is_named_as_its_dialect_names_it(tmp_path, dialect):
    body = {"model": "m", "max_tokens": 9, FIELDS[dialect]: []}

    status, said = refused(tmp_path, PATHS[dialect], body)

    assert (400, FIELDS[dialect]) == (status, said.partition(":")[0])


@pytest.mark.parametrize("scheme", ["bearer", "BEARER"])
def test_the_scheme_of_a_key_may_be_written_in_any_case(tmp_path, scheme):
    body = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "x"}]}

    async def run():
        async with application(tmp_path, WriteAheadLog(tmp_path)) as (app, _, key):
            return await post(app, PATHS["chat"], key, body, scheme=scheme)

    assert 200 == asyncio.run(run())[0]


@pytest.mark.parametrize(
    ("path", "is_anthropic"),
    [
        ("/v1/responses/compact", False),
        ("/exec/x/v1/responses/compact", False),
        ("/v1/completions", False),
        ("/responses/compact", False),
        ("/v1/messages/batches", True),
        ("/elsewhere", True),
    ],
)
def test_an_unknown_path_is_refused_in_the_shape_of_its_dialect(tmp_path, path, is_anthropic):
    async def run():
        async with application(tmp_path, WriteAheadLog(tmp_path)) as (app, _, key):
            return await post(app, path, key, {})

    status, said = asyncio.run(run())
    error = json.loads(said)

    assert 404 == status
    assert is_anthropic == (error.get("type") == "error")
    assert is_anthropic == ("code" not in error["error"])


SAID = [{"role": "user", "content": "x"}]
SCHEMA = {"type": "json_schema", "schema": {"type": "object"}}
FORMS = [
    ("messages", {"tool_choice": {"type": "any"}}, "tool_choice"),
    ("messages", {"output_config": {"format": SCHEMA}}, "output_config.format"),
    ("messages", {"output_format": SCHEMA}, "output_format"),
    ("chat", {"tool_choice": "required"}, "tool_choice"),
    ("chat", {"tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice"),
    ("chat", {"response_format": {"type": "json_object"}}, "response_format"),
    ("chat", {"guided_regex": "a+"}, "guided_regex"),
    ("responses", {"tool_choice": {"type": "function", "name": "f"}}, "tool_choice"),
    ("responses", {"text": {"format": SCHEMA | {"name": "n"}}}, "text.format"),
]
"""What holds a reply to a form, and what its refusal names."""


def answered(tmp_path, dialect, fields, headers=()):
    """The status, what was said, and the flags and settings of the calls recorded."""

    async def run():
        body = {"model": "m", FIELDS[dialect]: SAID} | fields
        async with application(tmp_path, WriteAheadLog(tmp_path)) as (app, _, key):
            return await post(app, PATHS[dialect], key, body, headers=headers)

    status, said = asyncio.run(run())
    records = read(next(logs(tmp_path))).records
    calls = [(one.flags, one.asked) for one in records if isinstance(one, CallClosed)]
    return status, json.loads(said), calls


@pytest.mark.parametrize(("dialect", "fields", "where"), FORMS)
def test_a_form_that_no_reply_is_held_to_is_refused_by_name(tmp_path, dialect, fields, where):
    status, said, calls = answered(tmp_path, dialect, fields)

    assert (400, where, []) == (status, said["error"]["message"].partition(":")[0], calls)


@pytest.mark.parametrize(("dialect", "fields", "where"), FORMS)
def test_a_call_that_is_never_trained_may_ask_for_a_form_and_is_flagged(
    tmp_path, dialect, fields, where
):
    headers = [(b"x-gyre-role", b"aux")]

    status, _, [(flags, _)] = answered(tmp_path, dialect, fields, headers)

    assert (200, True) == (status, "not-enforced" in flags)


def test_a_known_program_may_ask_for_a_form_and_is_flagged(tmp_path):
    """Nobody can change what it sends, and its side calls ask for formats."""
    headers = [(b"user-agent", b"claude-cli/2.1.325 (external, cli)")]
    fields = {"tools": [{"name": "f"}], "output_config": {"format": SCHEMA}}

    status, _, [(flags, asked)] = answered(tmp_path, "messages", fields, headers)

    assert (200, True) == (status, "not-enforced" in flags)
    assert "json_schema" in asked["output_config"]


@pytest.mark.parametrize("dialect", PATHS)
def test_fields_in_no_table_are_counted_and_named_in_the_record(tmp_path, dialect):
    status, _, [(flags, asked)] = answered(tmp_path, dialect, {"novelty": 1, "another": {}})

    assert (200, True) == (status, "unknown-field" in flags)
    assert "another, novelty" == asked["unknown_fields"]


@pytest.mark.parametrize("dialect", PATHS)
def test_too_many_messages_are_named_as_their_dialect_names_them(tmp_path, dialect):
    one = {"role": "user", "content": "x"}
    body = {"model": "m", "max_tokens": 9, FIELDS[dialect]: [one] * 20_001}

    assert (413, f"{FIELDS[dialect]}: expected at most 20000") == refused(
        tmp_path, PATHS[dialect], body
    )


def test_a_conversation_of_items_that_ends_on_a_call_says_which_item(tmp_path):
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    body = {"model": "m", "input": [{"role": "user", "content": "x"}, call]}

    assert (400, "input[1]: a conversation cannot end on a tool call") == refused(
        tmp_path, PATHS["responses"], body
    )


def test_counting_tokens_takes_no_more_messages_than_a_call(tmp_path):
    one = {"role": "user", "content": "x"}
    body = {"model": "m", "messages": [one] * 20_001}

    assert 413 == refused(tmp_path, "/v1/messages/count_tokens", body)[0]


def test_every_choice_counts_against_the_calls_in_flight(tmp_path):
    async def run():
        async with application(tmp_path, WriteAheadLog(tmp_path)) as (_, execution, _):
            most = execution.limits.calls_per_execution
            execution.in_flight = most - 2
            execution.admit(1.0, 2)
            with pytest.raises(Overloaded, match="in flight"):
                execution.admit(1.0, 3)

    asyncio.run(run())


def test_what_an_error_quotes_is_no_order_to_a_terminal():
    assert "found \\x1b[2J" == str(GyreError("found \x1b[2J"))
