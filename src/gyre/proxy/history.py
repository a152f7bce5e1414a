"""A request's history as units to match, each wire message decoded at most once.

A unit is what tokens are shared by: the preface (tools and system prompt), one message, or a run
of tool results, because templates fold such runs into one turn. Decoded messages are not kept:
their digests are, under a hash of the bytes they came in.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from xxhash import xxh3_128_digest

from gyre.proxy.dialect import Dialect, Wire
from gyre.proxy.keys import Keys, MatchKeys
from gyre.words.conversation import Message, Role, Tool
from gyre.words.errors import RequestError


@dataclass(frozen=True, slots=True, kw_only=True)
class Preface:
    """Tools and system prompt: what every path of a conversation begins with."""

    system: tuple[Message, ...]
    """At most one message."""
    tools: tuple[Tool, ...]


@dataclass(slots=True)
class Unit:
    """Something that is matched as a whole, and where in the request it stands."""

    role: Role
    keys: MatchKeys
    pieces: list[int]
    """Positions in History.pieces order: (wire message, message within it) flattened."""


@dataclass(frozen=True, slots=True)
class _Piece:
    role: Role
    keys: MatchKeys


class Story:
    """One request's history: a preface and units, with messages read when they are needed."""

    def __init__(
        self,
        *,
        preface: Preface,
        preface_key: bytes,
        units: list[Unit],
        places: list[tuple[int, int]],
        reader: "History",
        dialect: Dialect,
        wire: Wire,
    ) -> None:
        self.preface = preface
        self.preface_key = preface_key
        self.units = units
        self._places = places
        self._reader = reader
        self._dialect = dialect
        self._wire = wire

    def messages(self, unit: Unit) -> list[Message]:
        """What a unit says: one message, or a run of tool results."""
        found = []
        for piece in unit.pieces:
            wire_index, within = self._places[piece]
            found.append(self._reader.read(self._dialect, self._wire, wire_index)[within])
        if unit.role == "assistant" and len(found) > 1:
            return [merge(found)]
        return found

    def without_last(self) -> "Story":
        """The same history before its last unit."""
        return Story(
            preface=self.preface,
            preface_key=self.preface_key,
            units=self.units[:-1],
            places=self._places,
            reader=self._reader,
            dialect=self._dialect,
            wire=self._wire,
        )


class History:
    """Reads histories of one execution and remembers what it has seen of them."""

    def __init__(self, keys: Keys, *, scope: tuple[str, ...], seed: int) -> None:
        self._keys = keys
        self._scope = scope
        """Model and renderer: part of what must match (M02)."""
        self._seed = seed
        self._seen: dict[tuple[str, bytes], tuple[_Piece, ...]] = {}
        self._merged: dict[tuple[bytes, ...], MatchKeys] = {}
        self._prefaces: dict[tuple[bytes, ...], tuple[Preface, bytes]] = {}

    def story(self, dialect: Dialect, wire: Wire) -> Story:
        """Raises RequestError that says where a message is not as its dialect has it."""
        hashes = [xxh3_128_digest(raw, self._seed) for raw in wire.messages]
        skip, preface, key = self._preface(dialect, wire, hashes)
        units: list[Unit] = []
        places: list[tuple[int, int]] = []
        name, seen = dialect.name, self._seen
        for index, digest in enumerate(hashes):
            pieces = seen.get((name, digest))
            if pieces is None:
                pieces = seen[name, digest] = self._pieces(dialect, wire, index)
            for within, piece in enumerate(pieces):
                if index == 0 and within < skip:
                    continue
                joins = units and _joins(dialect, units[-1].role, piece.role)
                if joins:
                    units[-1].pieces.append(len(places))
                else:
                    units.append(Unit(role=piece.role, keys=piece.keys, pieces=[len(places)]))
                places.append((index, within))
        story = Story(
            preface=preface,
            preface_key=key,
            units=units,
            places=places,
            reader=self,
            dialect=dialect,
            wire=wire,
        )
        for unit in units:
            if len(unit.pieces) > 1:
                unit.keys = self._together(story, unit, places, hashes)
        return story

    def read(self, dialect: Dialect, wire: Wire, index: int) -> tuple[Message, ...]:
        """The messages in one wire message, read anew."""
        try:
            return dialect.read(wire.messages[index])
        except RequestError as error:
            place = f"{'input' if dialect.coalesces else 'messages'}[{index}]"
            where = f"{place}.{error.where}" if error.where else place
            raise RequestError(error.message, where=where) from error

    def _pieces(self, dialect: Dialect, wire: Wire, index: int) -> tuple[_Piece, ...]:
        return tuple(
            _Piece(message.role, self._keys.of(message))
            for message in self.read(dialect, wire, index)
        )

    def _together(
        self, story: Story, unit: Unit, places: Sequence[tuple[int, int]], hashes: list[bytes]
    ) -> MatchKeys:
        where = tuple(
            hashes[places[piece][0]] + places[piece][1].to_bytes(2, "little")
            for piece in unit.pieces
        )
        known = self._merged.get(where)
        if known is None:
            messages = story.messages(unit)
            keys = [self._keys.of(message) for message in messages]
            known = keys[0] if len(keys) == 1 else self._keys.run(keys)
            self._merged[where] = known
        return known

    def _preface(
        self, dialect: Dialect, wire: Wire, hashes: list[bytes]
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

    def _read_preface(self, dialect: Dialect, wire: Wire) -> tuple[Preface, bytes]:
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
