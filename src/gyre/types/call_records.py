"""Records of the call log, call roles and the evidence for them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

from gyre.types.conversation import Message
from gyre.types.ids import CallId, ExecutionId, SegmentId
from gyre.types.sampling import SamplingParams, Span

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


FORMAT = 1
"""Version of the call log's records; a reader refuses a newer one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogOpened:
    """The execution exists; always the first record."""

    format: int
    execution: ExecutionId
    key_hash: bytes
    """SHA-256 of the execution's secret key; the key itself is never written."""
    salt: bytes
    """Keys the message digests, so that tool output cannot aim at a collision."""
    model: str
    renderer: str
    at: float
    """Seconds since the epoch, informative only: order is the order of records."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallOpened:
    """A request was rendered and accepted; without a later close the record is incomplete (M21)."""

    call: CallId
    at: float
    dialect: str
    num_messages: int
    prompt_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NewSegment:
    """One input message's tokens, new under its parent segment."""

    label: str
    """Role of the message, for people."""
    key: bytes
    """What a later message must digest to, to match (16 bytes)."""
    ids: bytes
    """int32, little-endian."""
    trim: int = 0
    """Tokens at the end of the parent segment's path that this one leaves out (T05)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallClosed:
    """A call with everything the engine saw and said.

    The path of its input is: the path of `parent`, then `inputs` in order, then `prompt`.
    """

    call: CallId
    parent: SegmentId
    """Deepest segment already in the tree."""
    inputs: tuple[NewSegment, ...]
    prompt: bytes
    """int32: the generation prompt, kept with the output so that siblings share inputs (M23)."""
    output: bytes
    """int32: the sampled ids, verbatim."""
    logprobs: bytes | None
    """float32, one per output id; None makes the output untrainable (SPEC 4.1)."""
    spans: tuple[Span, ...]
    finish: str
    message: Message
    """The reply as it was returned, tool payloads as sampled (SPEC 4.3)."""
    keys: tuple[bytes, ...]
    """Digests under which a later history may name this reply."""
    role: CallRole
    harness: str
    agent: str | None
    fork: str | None
    """Why this call does not simply extend an earlier one; None when it does."""
    ambiguous: bool
    """Whether equal twins could have been the parent (M08)."""
    trim: int = 0
    """Tokens at the end of the input path that the prompt leaves out (continuing a reply)."""
    sampling: SamplingParams
    asked: Mapping[str, str | int | float | bool | None] = field(default_factory=dict)
    """Sampling settings of the harness: recorded, not used."""
    metadata: Mapping[str, str] = field(default_factory=dict)
    """The dialect's request metadata: session and agent ids, user agent."""
    flags: tuple[str, ...] = ()
    """Defects worth counting: "no-logprobs", "echo-mismatch", "unknown-harness"."""
    opened_at: float
    closed_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CallFailed:
    """An opened call ended without an output to keep."""

    call: CallId
    at: float
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CallDelivered:
    """Every byte of the reply was flushed without error."""

    call: CallId


@dataclass(frozen=True, slots=True, kw_only=True)
class CallEchoed:
    """A later request's history holds the reply, or its first `tokens` output ids (SPEC 4.5)."""

    call: CallId
    tokens: int | None = None
    """None: all of it."""
    keys: tuple[bytes, ...] = ()
    """Digests of the shortened reply, where only a prefix came back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSealed:
    """The execution terminated: its key is closed and nothing follows."""

    at: float


CallRecord = (
    LogOpened | CallOpened | CallClosed | CallFailed | CallDelivered | CallEchoed | LogSealed
)
