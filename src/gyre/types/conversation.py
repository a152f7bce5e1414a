"""A conversation in the same form for every dialect: messages, tools, and the reply."""

from dataclasses import dataclass
from typing import Literal

Role = Literal["system", "user", "assistant", "tool"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """One call of a tool by an assistant message."""

    id: str
    """What the harness uses to associate the result."""
    name: str
    arguments: str
    """The JSON text as it was sampled or received; it need not be valid JSON."""
    native_id: str | None = None
    """The id the model itself wrote, for the families whose format carries one (Kimi)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One turn of a conversation; an assistant turn is one message however the dialect cuts it."""

    role: Role
    text: str = ""
    reasoning: str | None = None
    """Thinking of an assistant message; None when the client said nothing about it."""
    calls: tuple[ToolCall, ...] = ()
    answers: str | None = None
    """For a tool message: the id of the call it is the result of."""
    name: str | None = None
    """For a tool message: the name of the tool, where known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A function the model may call."""

    name: str
    description: str
    parameters: str
    """JSON Schema of the arguments, as JSON text."""


Finish = Literal["stop", "tool_calls", "length", "abort"]
"""Why a reply ended; "abort" means the harness was gone before it was delivered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Token counts as every dialect reports them."""

    prompt_tokens: int
    output_tokens: int
    cached_tokens: int = 0
    """Prompt tokens that were already on the matched path."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What goes back to the harness for one call."""

    message: Message
    """Role assistant; empty text means no text; tool-call ids are unique in the execution."""
    finish: Finish
    usage: Usage
    model: str
    """The model name the request asked for, echoed."""
    id: str
    """Unique in the execution; dialects prefix it as they like."""
    at: float = 0.0
    """When it was finished, in seconds since the epoch."""
