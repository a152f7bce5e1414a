"""A journal read back: every entry up to a torn tail, and damage by name."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from gyre.journal.entries import (
    MAGIC,
    MAJOR,
    OWN,
    Envelope,
    Header,
    JournalEntry,
    Origin,
    UnknownEvent,
)
from gyre.storage.frames import scan
from gyre.types.errors import ConfigError, LogDamaged

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
    """Bytes of a last commit that was being written when its writer died; nobody reacted to it."""

    @property
    def num_unknown(self) -> int:
        return sum(isinstance(entry.event, UnknownEvent) for entry in self.entries)

    def facts(self, kinds: tuple[type, ...]) -> list[tuple[float, Any]]:
        """Those of these kinds, each with its now; others are skipped."""
        return [(one.now, one.event) for one in self.entries if isinstance(one.event, kinds)]


def path_of(folder: Path) -> Path:
    """Where a run folder keeps its journal."""
    return folder / NAME


def read(path: Path, *, kinds: Sequence[type]) -> JournalContents:
    """All entries up to a torn tail; damage before it raises LogDamaged, a newer major too."""
    try:
        found = scan(path, magic=MAGIC, what="run journal")
    except OSError as error:
        message = f"{path}: no journal that can be read: {error.strerror}"
        raise ConfigError(message) from error
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
    try:
        header = _HEADERS.decode(payload)
    except msgspec.MsgspecError as error:
        message = f"{path}: its header does not decode: {error}"
        raise LogDamaged(message) from error
    if header.major > MAJOR:
        form = f"{header.major}.{header.minor}"
        message = f"{path}: format {form} is newer than {MAJOR}, which this Gyre reads"
        raise LogDamaged(message)
    return header


def entry_of(path: Path, at: int, payload: bytes, decoders: Decoders) -> JournalEntry:
    """Any other payload; raises LogDamaged."""
    try:
        found = _ENVELOPES.decode(payload)
        event: Any = UnknownEvent(kind=found.kind, fact=bytes(found.fact))
        if found.kind in decoders:
            event = decoders[found.kind].decode(found.fact)
    except msgspec.MsgspecError as error:
        message = f"{path}: record at byte {at} does not decode: {error}"
        raise LogDamaged(message) from error
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
        message = (
            f"{path}: entry {entry.sequence} at byte {at} goes back from epoch {before.epoch}, "
            f"{before.now} s to epoch {entry.epoch}, {entry.now} s"
        )
        raise LogDamaged(message)
