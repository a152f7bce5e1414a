"""Dialect protocol; reading client JSON with located errors.

What a dialect is: a translator between one wire format and conversations, and no more.

Rule 1: a dialect knows nothing of executions, trees or engines.
Rule 2: messages stay undecoded bytes in a Wire, so that a long history already seen costs a hash.
Rule 3: what `read`, `read_system` and `read_tools` return depends on their bytes alone.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Protocol, TypeVar

import msgspec

from gyre.types.call_records import Evidence
from gyre.types.conversation import Message, Reply, Tool
from gyre.types.errors import RequestError, TooLarge


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedRequest:
    """One request whose top level is parsed; messages and tools are still bytes."""

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


Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
Integer = Annotated[int, msgspec.Meta(ge=-(2**53), le=2**53)]
"""Bounded because a call log holds 64-bit integers and JSON knows no bound."""

_NO_PARAMETERS = '{"type":"object","properties":{}}'
"""The schema of a tool that was sent without one: it takes no arguments."""

_SECRETS = frozenset({"authorization", "x-api-key", "api-key", "cookie", "proxy-authorization"})
_IDENTIFYING = re.compile(
    r"user-agent|session-id|thread-id|x-openai-subagent|x-(parent-)?session-id"
    r"|x-(claude-code|codex)-.*"
)
_SYSTEM_CHARS = 4_000
_USER_CHARS = 400
_METADATA_LEVELS = 4
MOST_ASIDE_BYTES = 2**18
"""Of a field that says something about a request and is kept with its call."""
_NOTHING = frozenset({b"", b"null", b'""', b"[]"})

_AT = re.compile(r" - at `(?:key in )?\$(.*)`$")
_MISSING = re.compile(r"Object missing required field `(.*)`$")
_HALVES = re.compile(
    rb"\\u[dD](?:([89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})|[89a-fA-F][0-9a-fA-F]{2})"
)
"""An escape of half a character; the group is there when its other half follows."""
_MOST_HALVES = 100_000

T = TypeVar("T")


class Part(msgspec.Struct):
    """A part of a message's content in OpenAI's formats."""

    type: str
    text: str | None = None


class _Text(msgspec.Struct):
    text: str | None = None


class _Said(msgspec.Struct):
    role: str | None = None
    content: str | list[_Text] | None = None


_SAID = msgspec.json.Decoder(_Said)
_STRING = msgspec.json.Decoder(str)
_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])


def decode(decoder: msgspec.json.Decoder[T], data: bytes | msgspec.Raw, root: str = "") -> T:
    """The value that `data` holds; `root` is what its place is called in a refusal."""
    try:
        return decoder.decode(data)
    except msgspec.ValidationError as error:
        raise _refused(str(error), root) from error
    except msgspec.DecodeError as error:
        raise RequestError(f"not JSON: {error}", where=root or None) from error
    except UnicodeDecodeError as error:
        raise RequestError(f"not UTF-8: {error.reason}", where=root or None) from error
    except RecursionError as error:
        raise RequestError("nested too deeply", where=root or None) from error


def decode_body(decoder: msgspec.json.Decoder[T], body: bytes) -> T:
    """A request's top level; half characters become U+FFFD, because no token can spell them.

    JavaScript cuts strings between the halves of a character and writes a half as an escape,
    which is JSON by its grammar but not text.
    """
    try:
        return decode(decoder, body)
    except RequestError:
        mended = _mended(body)
        if mended == body:
            raise
    return decode(decoder, mended)


def _mended(body: bytes) -> bytes:
    if b"\0" in body:
        return body
    # An escaped backslash begins no escape: it steps aside as something that JSON cannot hold.
    plain = body.replace(rb"\\", b"\0\0")
    # Counted, because a body of nothing else would take seconds.
    whole = _HALVES.sub(
        lambda found: found[0] if found[1] else rb"\ufffd", plain, count=_MOST_HALVES
    )
    return whole.replace(b"\0\0", rb"\\")


def _refused(text: str, root: str) -> RequestError:
    at = _AT.search(text)
    path = root + (at[1] if at else "")
    what = text[: at.start()] if at else text
    missing = _MISSING.match(what)
    if missing:
        path = f"{path}.{missing[1]}"
        what = "required, but missing"
    return RequestError(what[0].lower() + what[1:], where=path.removeprefix(".") or None)


def present(raw: msgspec.Raw) -> msgspec.Raw | None:
    """None for a field that was not sent, or sent with nothing in it (T20)."""
    return None if _head(raw, 4) in _NOTHING else raw


def _head(raw: msgspec.Raw, size: int) -> bytes:
    return bytes(memoryview(raw)[:size])


def require(value: T | None, where: str, expected: str) -> T:
    """The value of a field that this kind of message cannot do without."""
    if value is None:
        raise RequestError(f"expected {expected}, got nothing", where=where)
    return value


def compact(raw: msgspec.Raw, where: str) -> str:
    """The JSON text as it was sent, less its blanks: numbers, escapes and repeated keys stay."""
    try:
        return str(msgspec.json.format(bytes(raw), indent=-1), "utf-8")
    except UnicodeDecodeError as error:
        raise RequestError(f"not UTF-8: {error.reason}", where=where) from error
    except RecursionError as error:
        raise RequestError("nested too deeply", where=where) from error


def text_of(raw: msgspec.Raw, where: str) -> str:
    """A value as text: a string is itself, nothing and null are empty, the rest is JSON (T12)."""
    if _head(raw, 4) in (b"", b"null"):
        return ""
    return decode(_STRING, raw, where) if _head(raw, 1) == b'"' else compact(raw, where)


def schema_of(raw: msgspec.Raw, where: str) -> str:
    """A tool's parameters as JSON text."""
    return text_of(raw, where) or _NO_PARAMETERS


def texts_of(content: str | list[Part] | None, where: str, *, kinds: Collection[str]) -> list[str]:
    """The texts of parts of these kinds; a string is one part, and none at all is no part (T20)."""
    if content is None or isinstance(content, str):
        return [content or ""]
    texts = []
    for index, part in enumerate(content):
        place = f"{where}[{index}]"
        if part.type not in kinds:
            kind = part.type[:40]
            raise RequestError(f"{kind} parts are not supported; expected text", where=place)
        texts.append(require(part.text, f"{place}.text", "a string"))
    return texts


def object_of(text: str) -> dict[str, msgspec.Raw] | None:
    """The entries of the JSON object that `text` spells; None when it spells anything else."""
    try:
        return _OBJECT.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return None


def flatten(raw: msgspec.Raw, where: str, *, prefix: str = "", level: int = 1) -> dict[str, str]:
    """Entries of an object as strings, inner objects under dotted keys; not an object: nothing."""
    if _head(raw, 1) != b"{":
        return {}
    check_size(len(memoryview(raw)), where)
    flat: dict[str, str] = {}
    for key, entry in decode(_OBJECT, raw, where).items():
        if present(entry) is None:
            continue
        # Bounded, because each level reads its bytes again.
        if _head(entry, 1) == b"{" and level < _METADATA_LEVELS:
            flat |= flatten(entry, where, prefix=f"{prefix}{key}.", level=level + 1)
        else:
            flat[prefix + key] = text_of(entry, where)
    return flat


def flatten_text(text: str, where: str) -> dict[str, str] | None:
    """Entries of an object that was sent as a string of JSON; None when the text is no object."""
    return None if object_of(text) is None else flatten(msgspec.Raw(text.encode()), where)


def settings(
    body: msgspec.Struct, names: Sequence[str]
) -> dict[str, str | int | float | bool | None]:
    """Those of the named fields that were sent; what is not a scalar as JSON text."""
    found: dict[str, str | int | float | bool | None] = {}
    for name in names:
        value = getattr(body, name)
        if isinstance(value, msgspec.Raw):
            check_size(len(memoryview(value)), name)
            value = text_of(value, name) or None
        if value is not None:
            scalar = isinstance(value, str | int | float)
            kept = value if scalar else str(msgspec.json.encode(value), "utf-8")
            if isinstance(kept, str):
                check_size(len(kept), name)
            found[name] = kept
    return found


def check_size(size: int, where: str) -> None:
    """TooLarge for more of a field than is kept with a call."""
    if size > MOST_ASIDE_BYTES:
        raise TooLarge(f"expected at most {MOST_ASIDE_BYTES} bytes, found {size}", where=where)


def harmless(headers: Mapping[str, str]) -> dict[str, str]:
    """Headers under lower-case names, without those that carry keys."""
    lower = {name.lower(): value for name, value in headers.items()}
    return {name: value for name, value in lower.items() if name not in _SECRETS}


def identifying(headers: Mapping[str, str]) -> dict[str, str]:
    """Headers that name the program, its session or its agent: part of a call's metadata."""
    return {name: value for name, value in headers.items() if _IDENTIFYING.fullmatch(name)}


def opening(system: str) -> str:
    """As much of a system text as tells its author."""
    return system[:_SYSTEM_CHARS]


_LOOK_BACK = 16
"""Messages from the end among which a marker may stand; results of parallel calls come between."""


def last_user(messages: Sequence[msgspec.Raw], field: str) -> tuple[str, ...]:
    """The beginning of each text block of the last user-role message near the end."""
    for index in range(len(messages) - 1, max(-1, len(messages) - 1 - _LOOK_BACK), -1):
        # A search for bytes is far cheaper than a decode, and most messages are not the user's.
        if b'"user"' not in bytes(messages[index]):
            continue
        said = decode(_SAID, messages[index], f"{field}[{index}]")
        if said.role != "user":
            continue
        if isinstance(said.content, str):
            return (said.content[:_USER_CHARS],)
        return tuple(
            part.text[:_USER_CHARS] for part in said.content or () if part.text is not None
        )
    return ()
