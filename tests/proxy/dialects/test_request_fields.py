"""What becomes of every field of a request: used, harmless, or refused by name."""

import json
from typing import Any, get_type_hints

import pytest
from anthropic.types import message_count_tokens_params as count_params
from anthropic.types import message_create_params as message_params
from anthropic.types.beta import message_count_tokens_params as beta_count_params
from anthropic.types.beta import message_create_params as beta_message_params
from openai.types.chat import completion_create_params as chat_params
from openai.types.responses import response_create_params as response_params

from gyre.proxy.dialects import anthropic, openai_chat, openai_responses
from gyre.proxy.dialects.base import Dialect, RequestReader
from gyre.types.errors import RequestError

MESSAGES = anthropic.AnthropicMessages()
CHAT = openai_chat.OpenAIChat()
RESPONSES = openai_responses.OpenAIResponses()
LOGPROBS = "message.output_text.logprobs"


def split(dialect: Dialect, **fields: object) -> Any:
    return dialect.split(json.dumps({"model": "m", dialect.conversation: []} | fields).encode())


@pytest.mark.parametrize(
    ("reader", "params"),
    [
        (anthropic.REQUEST, message_params.MessageCreateParamsNonStreaming),
        (anthropic.REQUEST, message_params.MessageCreateParamsStreaming),
        (anthropic.REQUEST, beta_message_params.MessageCreateParamsStreaming),
        (anthropic.REQUEST, beta_message_params.ParseMessageCreateParamsBase),
        (anthropic.REQUEST, count_params.MessageCountTokensParams),
        (anthropic.REQUEST, beta_count_params.MessageCountTokensParams),
        (openai_chat.REQUEST, chat_params.CompletionCreateParamsNonStreaming),
        (openai_chat.REQUEST, chat_params.CompletionCreateParamsStreaming),
        (openai_responses.REQUEST, response_params.ResponseCreateParamsNonStreaming),
        (openai_responses.REQUEST, response_params.ResponseCreateParamsStreaming),
    ],
)
def test_every_field_that_the_official_clients_can_send_is_in_a_table(
    reader: RequestReader[Any], params: type
):
    sendable = set(get_type_hints(params))

    assert len(sendable) > 8
    assert set() == sendable - reader.fields


@pytest.mark.parametrize(
    ("dialect", "fields", "where"),
    [
        (MESSAGES, {"thread": {"type": "create"}}, "thread"),
        (MESSAGES, {"compaction": {"type": "summary"}}, "compaction"),
        (MESSAGES, {"container": "c"}, "container"),
        (MESSAGES, {"mcp_servers": [{"url": "x"}]}, "mcp_servers"),
        (CHAT, {"functions": [{"name": "f"}]}, "functions"),
        (CHAT, {"function_call": "auto"}, "function_call"),
        (CHAT, {"logprobs": True}, "logprobs"),
        (CHAT, {"top_logprobs": 2}, "top_logprobs"),
        (CHAT, {"logit_bias": {"7": -100}}, "logit_bias"),
        (CHAT, {"modalities": ["text", "audio"]}, "modalities"),
        (CHAT, {"audio": {"voice": "v"}}, "audio"),
        (CHAT, {"web_search_options": {"user_location": {}}}, "web_search_options"),
        (CHAT, {"moderation": {"model": "m"}}, "moderation"),
        (RESPONSES, {"prompt": {"id": "p"}}, "prompt"),
        (RESPONSES, {"background": True}, "background"),
        (RESPONSES, {"previous_response_id": "r"}, "previous_response_id"),
        (RESPONSES, {"include": [LOGPROBS]}, "include"),
        (RESPONSES, {"top_logprobs": 2}, "top_logprobs"),
        (RESPONSES, {"moderation": {"model": "m"}}, "moderation"),
    ],
)
def test_what_this_proxy_does_not_do_is_refused_by_name(
    dialect: Dialect, fields: dict[str, object], where: str
):
    with pytest.raises(RequestError) as refused:
        split(dialect, **fields)

    assert (400, where) == (refused.value.status, refused.value.where)


@pytest.mark.parametrize(
    ("dialect", "fields"),
    [
        (
            MESSAGES,
            {
                "thread": None,
                "container": None,
                "mcp_servers": [],
                "context_management": {"edits": [{"type": "clear_thinking_20251015"}]},
                "output_config": {"effort": "high"},
                "diagnostics": {"previous_message_id": None},
                "tool_choice": {"type": "auto"},
                "service_tier": "auto",
                "speed": "fast",
            },
        ),
        (
            CHAT,
            {
                "logprobs": False,
                "top_logprobs": 0,
                "logit_bias": {},
                "functions": None,
                "modalities": ["text"],
                "response_format": {"type": "text"},
                "tool_choice": "auto",
                "store": False,
                "service_tier": "auto",
            },
        ),
        (
            RESPONSES,
            {
                "include": ["reasoning.encrypted_content"],
                "background": False,
                "conversation": None,
                "text": {"verbosity": "low"},
                "tool_choice": "auto",
                "parallel_tool_calls": False,
                "stream_options": {"reasoning_summary_delivery": "sequential_cutoff"},
                "access_programs": {"cyber": "standard"},
                "truncation": "disabled",
                "store": False,
            },
        ),
    ],
)
def test_what_programs_send_without_harm_is_neither_refused_nor_flagged(
    dialect: Dialect, fields: dict[str, object]
):
    wire = split(dialect, **fields)

    assert () == wire.flags
    assert "unknown_fields" not in wire.asked


def test_a_body_that_is_wrong_beside_an_unknown_field_says_what_is_wrong():
    with pytest.raises(RequestError, match="max_tokens: expected `int"):
        split(MESSAGES, novelty=1, max_tokens="many")


def test_the_names_of_unknown_fields_are_bounded():
    wire = split(CHAT, **{f"{number:03}" + "x" * 100: 1 for number in range(100)})

    assert (16, {64}) == (len(wire.unknown), {len(name) for name in wire.unknown})
