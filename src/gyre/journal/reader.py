"""Journal header, entries, reading, and following a growing journal.

The first frame is the header, every other one an entry: sequence, epoch, now, origin, kind, fact.
Rule 1: sequence counts without gaps, epoch and now never go back, also across a resume.
Rule 2: a kind the reader does not know is kept as it lies and may be skipped; what may not be
skipped needs a new major format, which a reader that does not know it refuses.

A journal as it grows, read on from where it was left.

Rule 1: an entry is given once; a commit that is being written, or is torn, waits.
Rule 2: a writer whose disk is full takes back what it could not write whole, before any component
reacted to it; a reader that has read of it begins anew, and `generation` says so.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from gyre.storage.framed_file import HEAD_BYTES, framed, payload_at, scan
from gyre.types.errors import ConfigError, LogDamaged, wrap_errors

MAGIC = b"GYREJRNL"
MAJOR, MINOR = 1, 1
"""MINOR grows with new kinds and new fields, which have defaults; MAJOR with anything else."""
OLDEST = 1, 1
"""A run of an older format may be read, and does not go on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """The first frame of a journal: the run's name, seed, start and scheduler settings."""

    run: str
    """Its name."""
    seed: int
    started_at: float
    """Seconds of the calendar; informative, because entries count from the start of the run."""
    shape: Mapping[str, Any]
    """The scheduler's shape in plain values."""
    notes: Mapping[str, Any] = field(default_factory=dict)
    """What else a reader may want, in plain values: versions, host, configuration."""
    major: int = MAJOR
    minor: int = MINOR


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Which process posted a fact, and its number there, so that one posted twice counts once."""

    source: str
    sequence: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumed:
    """A resumed controller goes on writing the journal, in an epoch of its own."""

    at: float
    """Seconds of the calendar."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownEvent:
    """A fact of a kind that the reader does not know, as it lies in the file."""

    kind: str
    fact: bytes
    """In msgpack."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalEntry:
    """One fact and its place."""

    sequence: int
    """From 0, without gaps."""
    epoch: int
    """Which writer of the run wrote it, from 0; orders of an older one are refused."""
    now: float
    """Seconds since the run began; time without a writer is not counted."""
    origin: Origin | None
    """None for what the writer saw itself."""
    event: Any
    """One of the reader's kinds, or Resumed, or Unknown."""


OWN = (Resumed,)
"""Kinds that the journal adds itself."""


class Envelope(msgspec.Struct, array_like=True, frozen=True):
    """An entry as it lies in a frame; fields are only ever added at the end, with a default."""

    sequence: int
    epoch: int
    now: float
    source: str | None
    source_sequence: int
    kind: str
    fact: msgspec.Raw


NAME = "journal"

Decoders: TypeAlias = Mapping[str, msgspec.msgpack.Decoder[Any]]

_ENVELOPES = msgspec.msgpack.Decoder(Envelope)
_HEADERS = msgspec.msgpack.Decoder(Header)


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalContents:
    """What a journal holds, and where its sound part ends."""

    path: Path
    header: Header | None
    """None where its writer died before anything was recorded."""
    entries: tuple[JournalEntry, ...]
    sound_bytes: int
    torn_bytes: int
    """Bytes of a last commit that was being written when its writer died; no component reacted."""

    @property
    def num_unknown(self) -> int:
        return sum(isinstance(entry.event, UnknownEvent) for entry in self.entries)

    def facts(self, kinds: tuple[type, ...]) -> list[tuple[float, Any]]:
        """Those of these kinds, each with its now; others are skipped."""
        return [
            (entry.now, entry.event) for entry in self.entries if isinstance(entry.event, kinds)
        ]


def path_of(folder: Path) -> Path:
    """Where a run folder keeps its journal."""
    return folder / NAME


def read(path: Path, *, kinds: Sequence[type]) -> JournalContents:
    """All entries up to a torn tail; damage before it raises LogDamaged, a newer major too."""
    try:
        found = scan(path, magic=MAGIC, what="run journal")
    except OSError as error:
        raise ConfigError(f"{path}: no journal that can be read: {error.strerror}") from error
    header = header_of(path, found.payloads[0][1]) if found.payloads else None
    decoders = decoders_of(kinds)
    entries: list[JournalEntry] = []
    for at, payload in found.payloads[1:]:
        entry = entry_of(path, at, payload, decoders)
        check_order(path, at, entry, entries[-1] if entries else None)
        entries.append(entry)
    return JournalContents(
        path=path,
        header=header,
        entries=tuple(entries),
        sound_bytes=found.sound_bytes,
        torn_bytes=found.torn_bytes,
    )


def decoders_of(kinds: Sequence[type]) -> Decoders:
    """By name, for these kinds and the journal's own."""
    return {kind.__name__: msgspec.msgpack.Decoder(kind) for kind in (*kinds, *OWN)}


def header_of(path: Path, payload: bytes) -> Header:
    """The first payload of a journal; raises LogDamaged."""
    with wrap_errors(LogDamaged, f"{path}: its header does not decode", msgspec.MsgspecError):
        header = _HEADERS.decode(payload)
    if header.major > MAJOR:
        form = f"{header.major}.{header.minor}"
        raise LogDamaged(f"{path}: format {form} is newer than {MAJOR}, which this Gyre reads")
    return header


def refuse_to_go_on(path: Path, header: Header) -> None:
    """ConfigError if a run of this header's format cannot go on."""
    found, form = (header.major, header.minor), f"{header.major}.{header.minor}"
    if found > (MAJOR, MINOR):
        raise ConfigError(f"{path}: format {form} is newer than {MAJOR}.{MINOR}, which is written")
    if found < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise ConfigError(
            f"{path}: found a run of journal format {form}, expected {oldest} or newer: only the "
            "Gyre that began the run can go on with it"
        )


def entry_of(path: Path, at: int, payload: bytes, decoders: Decoders) -> JournalEntry:
    """Any other payload; raises LogDamaged."""
    try:
        found = _ENVELOPES.decode(payload)
        event: Any = UnknownEvent(kind=found.kind, fact=bytes(found.fact))
        if found.kind in decoders:
            event = decoders[found.kind].decode(found.fact)
    except msgspec.MsgspecError as error:
        raise LogDamaged(f"{path}: record at byte {at} does not decode: {error}") from error
    origin = None
    if found.source is not None:
        origin = Origin(source=found.source, sequence=found.source_sequence)
    return JournalEntry(
        sequence=found.sequence, epoch=found.epoch, now=found.now, origin=origin, event=event
    )


def check_order(path: Path, at: int, entry: JournalEntry, before: JournalEntry | None) -> None:
    """Raises LogDamaged where an entry cannot follow the one before it."""
    expected = 0 if before is None else before.sequence + 1
    if entry.sequence != expected:
        message = f"{path}: entry {entry.sequence} at byte {at}, where {expected} should follow"
        raise LogDamaged(message)
    if before is not None and (entry.epoch < before.epoch or entry.now < before.now):
        raise LogDamaged(
            f"{path}: entry {entry.sequence} at byte {at} goes back from epoch {before.epoch}, "
            f"{before.now} s to epoch {entry.epoch}, {entry.now} s"
        )


class JournalFollower:
    """One reader of a journal that another process may be writing."""

    def __init__(self, path: Path, *, kinds: Sequence[type]) -> None:
        self.path = path
        self._decoders = decoders_of(kinds)
        self.generation = 0
        """How often everything that was given before became void."""
        self.torn_bytes = 0
        """Behind the last whole entry."""
        self._forget()

    def _forget(self) -> None:
        self.header: Header | None = None
        self._last: JournalEntry | None = None
        self._frame = b""
        """The last frame that was read, as it lay there."""
        self._end = 0
        """Where it ends."""

    def news(self) -> list[JournalEntry]:
        """Entries since the last time; raises ConfigError where there is no journal to read, and
        LogDamaged where its sound part is not all of it."""
        try:
            if self._end:
                found = self._behind()
                if found is not None:
                    return found
                self._forget()
                self.generation += 1
            return self._whole()
        except OSError as error:
            message = f"{self.path}: no journal that can be read: {error.strerror}"
            raise ConfigError(message) from error

    def _whole(self) -> list[JournalEntry]:
        found = scan(self.path, magic=MAGIC, what="run journal")
        self.torn_bytes = found.torn_bytes
        return self._taken(found.payloads, found.sound_bytes)

    def _behind(self) -> list[JournalEntry] | None:
        """None when what was read last is no longer there."""
        begin = self._end - len(self._frame)
        with self.path.open("rb") as file:
            file.seek(begin)
            data = file.read()
        if not data.startswith(self._frame):
            return None
        payloads = []
        at = len(self._frame)
        while (payload := payload_at(data, at)) is not None:
            payloads.append((begin + at, payload))
            at += HEAD_BYTES + len(payload)
        self.torn_bytes = len(data) - at
        return self._taken(payloads, begin + at)

    def _taken(self, payloads: Sequence[tuple[int, bytes]], end: int) -> list[JournalEntry]:
        entries: list[JournalEntry] = []
        for at, payload in payloads:
            if self.header is None:
                self.header = header_of(self.path, payload)
                continue
            entry = entry_of(self.path, at, payload, self._decoders)
            check_order(self.path, at, entry, self._last)
            self._last = entry
            entries.append(entry)
        if payloads:
            self._end = end
            self._frame = framed(payloads[-1][1])
        return entries
