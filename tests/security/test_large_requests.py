"""Requests that could hold up everybody else are refused by what a little of them shows."""

import msgspec
import pytest

from gyre.harnesses.roles import classify
from gyre.proxy.dialects.anthropic import AnthropicMessages
from gyre.proxy.dialects.base import MOST_ASIDE_BYTES
from gyre.proxy.dialects.openai_chat import OpenAIChat
from gyre.proxy.dialects.openai_responses import OpenAIResponses
from gyre.proxy.session.prompt import MOST_BYTES, SLICE_CHARS
from gyre.proxy.session.session import Session
from gyre.testing.renderer import ByteRenderer
from gyre.types.call_records import LogOpened
from gyre.types.errors import ContextOverflow, TooLarge
from gyre.types.ids import ExecutionId
from gyre.types.sampling import SamplingParams

CONTEXT = 2**16
OPENED = LogOpened(
    format=1, execution=ExecutionId("x"), key_hash=b"k", salt=b"s", model="m", renderer="r", at=0.0
)


class Counting(ByteRenderer):
    """Says how much it was given to encode."""

    def __init__(self, per_token=1, **how):
        super().__init__(**how)
        self.num_chars = 0
        self._per_token = per_token

    def encode(self, text):
        self.num_chars += len(text)
        return super().encode(text)[:: self._per_token]


def positioned(renderer, body):
    session = Session(
        OPENED,
        renderer,
        sampling=SamplingParams(),
        context_tokens=CONTEXT,
        honour_sampling=False,
    )
    session.apply(OPENED)
    dialect = OpenAIChat()
    wire = dialect.split(msgspec.json.encode(body))
    return session.position(dialect, wire, classify(dialect.evidence(wire, {}), set()))


def asking(text, **more):
    return {"model": "m", "messages": [{"role": "user", "content": text}], **more}


def tool(text):
    return {"type": "function", "function": {"name": "f", "description": text}}


@pytest.mark.parametrize(
    "body",
    [
        asking("x" * 100 * CONTEXT),
        asking("x", tools=[tool("y" * 100 * CONTEXT)]),
        asking("x", tools=[tool("y" * CONTEXT)] * 100),
    ],
    ids=["a message", "a tool", "many tools"],
)
def test_a_prompt_far_over_the_window_is_refused_after_a_windowful_of_it(body):
    """FAULTS 34: others wait no longer than for the longest prompt that fits."""
    renderer = Counting()
    with pytest.raises(ContextOverflow) as refused:
        positioned(renderer, body)

    assert CONTEXT < refused.value.prompt_tokens
    assert renderer.num_chars < 2 * CONTEXT + SLICE_CHARS


def test_text_that_encodes_to_next_to_nothing_is_refused_by_its_size():
    renderer = Counting(per_token=1000)
    with pytest.raises(TooLarge, match="of new text"):
        positioned(renderer, asking(" " * 100 * CONTEXT))

    assert renderer.num_chars <= MOST_BYTES * CONTEXT + SLICE_CHARS


def test_a_prompt_that_fits_is_encoded_once_and_none_of_it_beforehand():
    renderer = Counting()
    pending = positioned(renderer, asking("x" * (CONTEXT // 2)))

    assert CONTEXT // 2 <= pending.prompt_tokens < CONTEXT
    assert 0 == renderer.num_chars


def test_thinking_that_no_prompt_will_hold_does_not_count():
    """A long history that comes under another preface brings all of its thinking along."""
    thought = {"role": "assistant", "content": "a", "reasoning_content": "t" * 10 * CONTEXT}
    said = [{"role": "user", "content": "q"}, thought, {"role": "user", "content": "more"}]
    body = {"model": "m", "messages": said}

    assert positioned(Counting(thinking="template"), body).prompt_tokens < CONTEXT
    with pytest.raises(ContextOverflow):
        positioned(Counting(thinking="all"), body)


TEXT = "x" * (MOST_ASIDE_BYTES + 1)
LARGE = {"k": TEXT}
SAID = [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize(
    ("dialect", "body", "where"),
    [
        (OpenAIChat(), {"messages": SAID, "metadata": LARGE}, "metadata"),
        (OpenAIChat(), {"messages": SAID, "response_format": LARGE}, "response_format"),
        (OpenAIChat(), {"messages": SAID, "stop": [TEXT]}, "stop"),
        (AnthropicMessages(), {"messages": SAID, "max_tokens": 9, "thinking": LARGE}, "thinking"),
        (
            AnthropicMessages(),
            {"messages": SAID, "metadata": {"user_id": TEXT}},
            "metadata.user_id",
        ),
        (
            AnthropicMessages(),
            {"messages": SAID, "max_tokens": 9, "tool_choice": LARGE},
            "tool_choice",
        ),
        (OpenAIResponses(), {"input": "hi", "text": LARGE}, "text"),
        (OpenAIResponses(), {"input": "hi", "client_metadata": LARGE}, "client_metadata"),
    ],
)
def test_what_is_kept_beside_a_call_is_bounded(dialect, body, where):
    """Each of these goes into the call log as it is, and whoever sends it pays nothing for it."""
    with pytest.raises(TooLarge) as refused:
        dialect.split(msgspec.json.encode({"model": "m", **body}))

    assert where == refused.value.where
