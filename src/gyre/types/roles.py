"""The five classes of a call, and the evidence they are told by (SPEC 5)."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

CallRole = Literal["main", "main-summary", "sub-agent", "sub-agent-summary", "aux"]
CALL_ROLES: tuple[CallRole, ...] = get_args(CallRole)

PRIORITY: tuple[CallRole, ...] = ("main", "main-summary", "sub-agent", "sub-agent-summary")
"""eq:trajectory-priority; aux is recorded and never trained."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What a harness shows of a call's purpose, without the conversation's bulk."""

    dialect: str
    """"messages", "chat" or "responses"."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Lower-case names; keys and cookies left out."""
    metadata: Mapping[str, str] = field(default_factory=dict)
    """Body fields that identify a session or thread, flattened to strings."""
    system: str = ""
    """First 4,000 characters of the system text, raw (billing block included)."""
    tools: tuple[str, ...] = ()
    """Names of client tools; server tools (web search) left out."""
    last_user: tuple[str, ...] = ()
    """First 400 characters of each text block of the last user-role message."""
    num_messages: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Classification:
    """A call's class, and who made it."""

    role: CallRole
    harness: str
    """Name of the rule table, or "generic"."""
    agent: str | None = None
    """The sub-agent or thread that made the call; None for the main agent or where unknown."""
    parent_agent: str | None = None
    known: bool = True
    """False when the harness is unknown or a marker was missing; counted."""
