"""A request's history as units with digests; resume points of recent requests.

Digests by which a message in a history finds its tokens, also after a harness rewrote it.

A sampled reply is known by its text and the ids of its tool calls, because harnesses rewrite the
names and arguments they echo (SPEC 4.3, T12 to T16); where ids are unknown, by text and payload.
An input message is known by everything it says.

Where an execution's last requests stood, so that the next one is matched from there on.

A history is mostly the one before it with a little more at its end. Trails are a short cut only:
what they skip has been matched before, and a request that leaves them is matched from the root.

A unit is what tokens are shared by: the preface (tools and system prompt), one message, or a run
of tool results, because templates fold such runs into one turn. Decoded messages are not kept:
their digests are, under a hash of the bytes they came in.
"""

import json
from array import array
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b

from xxhash import xxh3_128_digest

from gyre.proxy.dialects.base import Dialect, ParsedRequest
from gyre.types.conversation import Message, Role, Tool, ToolCall
from gyre.types.errors import RequestError
from gyre.types.ids import SegmentId

KEY_BYTES = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchDigests:
    """The digests under which one message may be found below its parent segment."""

    sampled: tuple[bytes, ...]
    """As a sampled reply, the likeliest first: by its tool-call ids, then by their payloads; of
    each with the thinking that was said, then, where none was said, with any."""
    as_input: bytes
    """The same message given as input before."""


class MessageDigests:
    """Makes digests of messages, keyed by a salt so that content cannot aim at a collision."""

    def __init__(self, salt: bytes) -> None:
        self._salt = salt

    def digest(self, *parts: str) -> bytes:
        """128 bits of all the parts, their borders included."""
        state = blake2b(digest_size=KEY_BYTES, key=self._salt)
        for part in parts:
            data = part.encode("utf-8", "surrogatepass")
            state.update(len(data).to_bytes(8, "little"))
            state.update(data)
        return state.digest()

    def run(self, keys: Iterable[MatchDigests]) -> MatchDigests:
        """Of several input messages that templates fold into one turn (M14)."""
        together = blake2b(digest_size=KEY_BYTES, key=self._salt)
        for key in keys:
            together.update(key.as_input)
        return MatchDigests(sampled=(), as_input=together.digest())

    def of(self, message: Message) -> MatchDigests:
        """How this message of an incoming history may be found."""
        if message.role != "assistant":
            return MatchDigests(sampled=(), as_input=self._as_input(message))
        # Dialects need not echo thinking; its absence says nothing, so it matches any (T20).
        thoughts = [_thought(message)] if message.reasoning else [_thought(message), _ANY]
        return MatchDigests(
            sampled=self._replies(message, thoughts), as_input=self._as_input(message)
        )

    def reply(self, message: Message) -> tuple[bytes, ...]:
        """Under which digests a sampled reply is entered, in the form it was returned (T22)."""
        return self._replies(message, [_thought(message), _ANY])

    def _replies(self, message: Message, thoughts: list[tuple[str, ...]]) -> tuple[bytes, ...]:
        ids = [plain_id(call.id) for call in message.calls]
        payloads = [part for call in message.calls for part in _payload(call)]
        ways = [("ids", ids), ("payload", payloads)] if message.calls else [("ids", ids)]
        return tuple(
            self.digest(way, *thought, message.text, *parts)
            for way, parts in ways
            for thought in thoughts
        )

    def _as_input(self, message: Message) -> bytes:
        calls = (part for call in message.calls for part in (plain_id(call.id), *_payload(call)))
        answers = plain_id(message.answers) if message.answers else ""
        thought = _thought(message)
        return self.digest("input", message.role, message.text, answers, *thought, *calls)


def plain_id(call_id: str) -> str:
    """A tool-call id without what harnesses strip from ids (T15)."""
    return "".join(filter(str.isalnum, call_id)) or call_id


_ANY = ("any",)


def _thought(message: Message) -> tuple[str, ...]:
    return ("said", message.reasoning) if message.reasoning else ("unsaid",)


def _payload(call: ToolCall) -> tuple[str, str]:
    return call.name, canonical_arguments(call.arguments)


def canonical_arguments(text: str) -> str:
    """One spelling for arguments that differ in key order, spaces or escapes only.

    Text that is not plain JSON (duplicate keys, NaN, overflow, absurd nesting) stays as it is: it
    equals itself and nothing else (T18).
    """
    try:
        value = json.loads(
            text or "{}",
            object_pairs_hook=_without_duplicates,
            parse_constant=_refuse,
            parse_float=_finite,
        )
        canonical = json.dumps({} if value is None else value, sort_keys=True)
    except (ValueError, RecursionError):
        return "raw " + text
    return "json " + canonical


def _without_duplicates(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("duplicate keys")
    return found


def _refuse(constant: str) -> object:
    raise ValueError(constant)


def _finite(text: str) -> float:
    value = float(text)
    if value in (float("inf"), float("-inf")):
        raise ValueError(text)
    return value


HASH_BYTES = 16
MOST_TRAILS = 4
"""Agents of an execution that talk in turns; the one silent for longest is forgotten first."""
FEWEST_UNITS = 8
"""Shorter histories are matched as quickly from the root."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryFingerprint:
    """What is needed to recognise a request's history in a later one."""

    scope: tuple[str, bytes]
    """Dialect and preface."""
    hashes: bytes
    """Hash of each wire message, end to end."""
    starts: "array[int]"
    """Per unit: the wire message it begins with, times two, plus one if not at its beginning."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumePoint:
    """A request that was answered: its history, and the segments that hold it."""

    mark: HistoryFingerprint
    path: "array[int]"
    """The preface's segment, then one per unit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumption:
    """The part of a new history that a resume point already holds."""

    path: list[SegmentId]
    """The preface's segment and one per unit that is skipped."""
    starts: "array[int]"
    next_message: int
    """The first wire message that has to be looked at."""


class ResumePoints:
    """The resume points of one execution's last few requests."""

    def __init__(self, *, fewest_units: int = FEWEST_UNITS) -> None:
        self._fewest_units = fewest_units
        self._trails: deque[ResumePoint] = deque(maxlen=MOST_TRAILS)

    def keep(self, trail: ResumePoint) -> None:
        """Keeps the newest resume point; one that it continues is dropped."""
        if len(trail.path) <= self._fewest_units:
            return
        for old in self._trails:
            same = old.mark.scope == trail.mark.scope
            if same and _common(old.mark.hashes, trail.mark.hashes) > self._fewest_units // 2:
                self._trails.remove(old)
                break
        self._trails.append(trail)

    def resume(self, scope: tuple[str, bytes], hashes: bytes) -> Resumption | None:
        """The longest beginning of this history that any resume point holds."""
        best: tuple[int, ResumePoint] | None = None
        for trail in self._trails:
            if trail.mark.scope != scope:
                continue
            common = _common(trail.mark.hashes, hashes)
            if best is None or common > best[0]:
                best = (common, trail)
        return None if best is None else self._resumption(best[1], best[0])

    def _resumption(self, trail: ResumePoint, common: int) -> Resumption | None:
        """Units that end before one which begins, cleanly, with a message that is common too."""
        starts = trail.mark.starts
        unit = min(len(starts), len(trail.path) - 1) - 1
        while unit >= self._fewest_units and (starts[unit] % 2 or starts[unit] // 2 >= common):
            unit -= 1
        if unit < self._fewest_units:
            return None
        return Resumption(
            path=[SegmentId(segment) for segment in trail.path[: unit + 1]],
            starts=starts[:unit],
            next_message=starts[unit] // 2,
        )


def _common(left: bytes, right: bytes) -> int:
    """How many leading hashes are equal."""
    low, high = 0, min(len(left), len(right)) // HASH_BYTES
    if left[: high * HASH_BYTES] == right[: high * HASH_BYTES]:
        return high
    while low + 1 < high:
        middle = (low + high) // 2
        if left[: middle * HASH_BYTES] == right[: middle * HASH_BYTES]:
            low = middle
        else:
            high = middle
    return low


@dataclass(frozen=True, slots=True, kw_only=True)
class Preface:
    """Tools and system prompt: what every path of a conversation begins with."""

    system: tuple[Message, ...]
    """At most one message."""
    tools: tuple[Tool, ...]


@dataclass(slots=True)
class HistoryUnit:
    """Messages of a history that are matched as one, and where they stand in the request."""

    role: Role
    keys: MatchDigests
    pieces: list[tuple[int, int]]
    """(wire message, message within it), in order."""


@dataclass(frozen=True, slots=True)
class _Piece:
    role: Role
    keys: MatchDigests


class RequestHistory:
    """One request's history: a preface and units, read as far as they are needed."""

    def __init__(
        self,
        *,
        history: "HistoryReader",
        dialect: Dialect,
        wire: ParsedRequest,
        hashes: list[bytes],
        preface: Preface,
        preface_key: bytes,
        skipped: int,
        trails: ResumePoints,
    ) -> None:
        self._history = history
        self._dialect = dialect
        self._wire = wire
        self._hashes = hashes
        self._skipped = skipped
        self.preface = preface
        self.preface_key = preface_key
        scope, joined = (dialect.name, preface_key), b"".join(hashes)
        resumption = trails.resume(scope, joined)
        self.known: list[SegmentId] = resumption.path if resumption is not None else []
        """Segments of the preface and of the first units, where a trail holds them."""
        self._num_known = max(0, len(self.known) - 1)
        self.fresh = self._units(resumption.next_message if resumption is not None else 0)
        """The units that no resume point holds."""
        starts = resumption.starts if resumption is not None else array("I")
        starts.extend(2 * at + (within > 0) for at, within in (u.pieces[0] for u in self.fresh))
        self.mark = HistoryFingerprint(scope=scope, hashes=joined, starts=starts)

    def __len__(self) -> int:
        """How many units there are."""
        return self._num_known + len(self.fresh)

    def units(self, first: int = 0) -> Sequence[HistoryUnit]:
        """The units from this one on."""
        if first < self._num_known:
            # A history that leaves its trail is read whole, once.
            self.fresh, self._num_known = self._units(0), 0
        return self.fresh[first - self._num_known :]

    def messages(self, unit: HistoryUnit) -> list[Message]:
        """What a unit says: one message, or a run of tool results."""
        found = [
            self._history.read(self._dialect, self._wire, index)[within]
            for index, within in unit.pieces
        ]
        return [merge(found)] if unit.role == "assistant" and len(found) > 1 else found

    def drop_last(self) -> None:
        """Forget the last unit: the beginning of a reply that the client gives."""
        self.units(len(self) - 1)
        self.fresh = self.fresh[:-1]

    def _units(self, first: int) -> list[HistoryUnit]:
        skipped = 0 if first else self._skipped
        found = self._history.units(self._dialect, self._wire, self._hashes, first, skipped)
        for unit in found:
            if len(unit.pieces) > 1:
                unit.keys = self._history.together(self, unit, self._hashes)
        return found


class HistoryReader:
    """Reads histories of one execution and remembers what it has seen of them."""

    def __init__(
        self, keys: MessageDigests, *, scope: tuple[str, ...], seed: int, trails: ResumePoints
    ) -> None:
        self._keys = keys
        self._scope = scope
        """Model and renderer: part of what must match (M02)."""
        self._seed = seed
        self._seen: dict[tuple[str, bytes], tuple[_Piece, ...]] = {}
        self._merged: dict[tuple[bytes, ...], MatchDigests] = {}
        self._prefaces: dict[tuple[bytes, ...], tuple[Preface, bytes]] = {}
        self.trails = trails

    def history_of(self, dialect: Dialect, wire: ParsedRequest) -> RequestHistory:
        """Raises RequestError that says where a message is not as its dialect has it."""
        hashes = [xxh3_128_digest(raw, self._seed) for raw in wire.messages]
        skipped, preface, key = self._preface(dialect, wire, hashes)
        return RequestHistory(
            history=self,
            dialect=dialect,
            wire=wire,
            hashes=hashes,
            preface=preface,
            preface_key=key,
            skipped=skipped,
            trails=self.trails,
        )

    def units(
        self, dialect: Dialect, wire: ParsedRequest, hashes: list[bytes], first: int, skipped: int
    ) -> list[HistoryUnit]:
        """Units from a wire message on, less the messages there that belong to the preface."""
        units: list[HistoryUnit] = []
        name, seen = dialect.name, self._seen
        for index in range(first, len(hashes)):
            pieces = seen.get((name, hashes[index]))
            if pieces is None:
                pieces = seen[name, hashes[index]] = self._pieces(dialect, wire, index)
            for within, piece in enumerate(pieces):
                if index == first and within < skipped:
                    continue
                if units and _joins(dialect, units[-1].role, piece.role):
                    units[-1].pieces.append((index, within))
                else:
                    units.append(
                        HistoryUnit(role=piece.role, keys=piece.keys, pieces=[(index, within)])
                    )
        return units

    def read(self, dialect: Dialect, wire: ParsedRequest, index: int) -> tuple[Message, ...]:
        """The messages in one wire message, read anew."""
        try:
            return dialect.read(wire.messages[index])
        except RequestError as error:
            place = f"{dialect.conversation}[{index}]"
            where = f"{place}.{error.where}" if error.where else place
            raise RequestError(error.message, where=where) from error

    def _pieces(self, dialect: Dialect, wire: ParsedRequest, index: int) -> tuple[_Piece, ...]:
        return tuple(
            _Piece(message.role, self._keys.of(message))
            for message in self.read(dialect, wire, index)
        )

    def together(
        self, request_history: RequestHistory, unit: HistoryUnit, hashes: list[bytes]
    ) -> MatchDigests:
        """Keys of a unit that is made of several messages."""
        where = tuple(hashes[index] + within.to_bytes(4, "little") for index, within in unit.pieces)
        known = self._merged.get(where)
        if known is None:
            keys = [self._keys.of(message) for message in request_history.messages(unit)]
            known = keys[0] if len(keys) == 1 else self._keys.run(keys)
            self._merged[where] = known
        return known

    def _preface(
        self, dialect: Dialect, wire: ParsedRequest, hashes: list[bytes]
    ) -> tuple[int, Preface, bytes]:
        """How many messages of the first wire message it takes, the preface, and its key."""
        outer = wire.system is not None
        marks = (
            dialect.name.encode(),
            xxh3_128_digest(wire.system, self._seed) if wire.system is not None else b"",
            hashes[0] if hashes and not outer else b"",
            xxh3_128_digest(wire.tools, self._seed) if wire.tools is not None else b"",
            wire.template.encode(),
        )
        known = self._prefaces.get(marks)
        if known is None:
            known = self._prefaces[marks] = self._read_preface(dialect, wire)
        preface, key = known
        return (0 if outer else len(preface.system)), preface, key

    def _read_preface(self, dialect: Dialect, wire: ParsedRequest) -> tuple[Preface, bytes]:
        system: tuple[Message, ...] = ()
        if wire.system is not None:
            system = dialect.read_system(wire.system)
        elif wire.messages:
            first = self.read(dialect, wire, 0)[:1]
            system = first if first and first[0].role == "system" else ()
        tools = dialect.read_tools(wire.tools) if wire.tools is not None else ()
        said = [message.text for message in system]
        specs = [part for tool in tools for part in (tool.name, tool.description, tool.parameters)]
        shape = f"{len(said)} {len(tools)}"
        key = self._keys.digest("preface", *self._scope, wire.template, shape, *said, *specs)
        return Preface(system=system, tools=tools), key


def _joins(dialect: Dialect, last: Role, role: Role) -> bool:
    if role == "tool":
        return last == "tool"
    return dialect.coalesces and role == "assistant" and last == "assistant"


def merge(pieces: Sequence[Message]) -> Message:
    """One assistant turn out of the pieces a dialect cuts it into."""
    thoughts = [piece.reasoning for piece in pieces if piece.reasoning is not None]
    return replace(
        pieces[0],
        text="".join(piece.text for piece in pieces),
        reasoning="\n".join(thoughts) if thoughts else None,
        calls=tuple(call for piece in pieces for call in piece.calls),
    )


def spans(units: Sequence[Sequence[Message]], *, first: int) -> Iterator[range]:
    """For units laid end to end in one list of messages: which positions each covers."""
    at = first
    for messages in units:
        yield range(at, at + len(messages))
        at += len(messages)
