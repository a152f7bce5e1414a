"""A request's history as units to match, each wire message decoded at most once.

A unit is what tokens are shared by: the preface (tools and system prompt), one message, or a run
of tool results, because templates fold such runs into one turn. Decoded messages are not kept:
their digests are, under a hash of the bytes they came in.
"""

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from xxhash import xxh3_128_digest

from gyre.proxy.dialects.dialect import Dialect, ParsedRequest
from gyre.proxy.session.keys import MatchDigests, MessageDigests
from gyre.proxy.session.trails import HistoryFingerprint, ResumePoints
from gyre.types.conversation import Message, Role, Tool
from gyre.types.errors import RequestError
from gyre.types.ids import SegmentId


@dataclass(frozen=True, slots=True, kw_only=True)
class Preface:
    """Tools and system prompt: what every path of a conversation begins with."""

    system: tuple[Message, ...]
    """At most one message."""
    tools: tuple[Tool, ...]


@dataclass(slots=True)
class HistoryUnit:
    """Something that is matched as a whole, and where in the request it stands."""

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
        self._fresh = self._units(resumption.next_message if resumption is not None else 0)
        starts = resumption.starts if resumption is not None else array("I")
        starts.extend(2 * at + (within > 0) for at, within in (u.pieces[0] for u in self._fresh))
        self.mark = HistoryFingerprint(scope=scope, hashes=joined, starts=starts)

    def __len__(self) -> int:
        """How many units there are."""
        return self._num_known + len(self._fresh)

    def units(self, first: int = 0) -> Sequence[HistoryUnit]:
        """The units from this one on."""
        if first < self._num_known:
            # A history that leaves its trail is read whole, once.
            self._fresh, self._num_known = self._units(0), 0
        return self._fresh[first - self._num_known :]

    def fresh(self) -> Sequence[HistoryUnit]:
        """The units that no trail holds."""
        return self._fresh

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
        self._fresh = self._fresh[:-1]

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

    def story(self, dialect: Dialect, wire: ParsedRequest) -> RequestHistory:
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
        self, story: RequestHistory, unit: HistoryUnit, hashes: list[bytes]
    ) -> MatchDigests:
        """Keys of a unit that is made of several messages."""
        where = tuple(hashes[index] + within.to_bytes(4, "little") for index, within in unit.pieces)
        known = self._merged.get(where)
        if known is None:
            keys = [self._keys.of(message) for message in story.messages(unit)]
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
