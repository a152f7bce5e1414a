"""What a request is refused for, and where the refusal says it is."""

import asyncio
import json

import pytest
from tests.proxy.test_call_handler import application, post

from gyre.storage.wal import WriteAheadLog
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
