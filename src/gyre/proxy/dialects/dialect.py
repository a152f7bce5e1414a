"""What a dialect is: a translator between one wire format and conversations, and no more.

Rule 1: a dialect knows nothing of executions, trees or engines.
Rule 2: messages stay undecoded bytes in a Wire, so that a long history already seen costs a hash.
Rule 3: what `read`, `read_system` and `read_tools` return depends on their bytes alone.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from gyre.types.conversation import Message, Reply, Tool
from gyre.types.errors import RequestError
from gyre.types.roles import Evidence


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedRequest:
    """One request, its top level read and its bulk still bytes."""

    model: str
    stream: bool
    system: msgspec.Raw | None
    """The dialect's separate system prompt, where it has one."""
    messages: list[msgspec.Raw]
    tools: msgspec.Raw | None
    max_tokens: int | None
    """What the client asks for at most; the run's own limit still holds."""
    choices: int = 1
    include_usage: bool = False
    template: str = ""
    """Template settings sent by the client, canonical; part of what must match (M02)."""
    asked: Mapping[str, str | int | float | bool | None] = field(default_factory=dict)
    """Sampling settings sent by the client (temperature, top_p, top_k, seed, stop...)."""
    metadata: Mapping[str, str] = field(default_factory=dict)
    """Body fields that identify a session, user or thread, flattened to strings."""
    stop: tuple[str, ...] = ()


class Dialect(Protocol):
    """One of the three wire formats (SPEC 4.6)."""

    @property
    def name(self) -> str:
        """ "messages", "chat" or "responses"."""
        ...

    @property
    def conversation(self) -> str:
        """The field of a request that holds its messages, for errors that name one of them."""
        ...

    @property
    def coalesces(self) -> bool:
        """Whether adjacent assistant messages are pieces of one turn (Responses items)."""
        ...

    @property
    def ping(self) -> bytes:
        """A frame that keeps a waiting stream alive and means nothing."""
        ...

    def split(self, body: bytes) -> ParsedRequest:
        """Raises RequestError that names the field and what was expected there."""
        ...

    def read_system(self, raw: msgspec.Raw) -> tuple[Message, ...]: ...

    def read(self, raw: msgspec.Raw) -> tuple[Message, ...]:
        """One wire message (or item) as zero or more messages, volatile text taken out."""
        ...

    def read_tools(self, raw: msgspec.Raw) -> tuple[Tool, ...]:
        """Client tools only; tools the server would run are left out."""
        ...

    def evidence(self, wire: ParsedRequest, headers: Mapping[str, str]) -> Evidence: ...

    def body(self, replies: Sequence[Reply], wire: ParsedRequest) -> bytes:
        """The whole answer as one JSON body."""
        ...

    def events(self, replies: Sequence[Reply], wire: ParsedRequest) -> bytes:
        """The whole answer as server-sent events, ready to be written in one go."""
        ...

    def error(self, error: RequestError) -> bytes:
        """The body of an error in this dialect's own shape; the status is error.status."""
        ...

    def error_event(self, error: RequestError) -> bytes:
        """The same error as the last event of a stream that has begun."""
        ...
