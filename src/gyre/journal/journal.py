"""The run's journal: one writer, many readers, and readers that follow it as it grows.

The first frame is the header, every other one an entry: sequence, epoch, now, origin, kind, fact.
Rule 1: sequence counts without gaps, epoch and now never go back, also across a resume.
Rule 2: a kind the reader does not know is kept as it lies and may be skipped; what may not be
skipped needs a new major format, which a reader that does not know it refuses.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from enum import Enum
from math import isfinite
from pathlib import Path
from typing import Any, Self, TypeAlias

import msgspec

from gyre.storage.files import sync
from gyre.storage.framed_file import HEAD_BYTES, FramedFile, framed, locked, payload_at, scan
from gyre.types.errors import ConfigError, InternalError, LogDamaged, TakenOver, wrap_errors

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
    """One reader of a journal that another process may be writing, read on from where it was left.

    Rule 1: an entry is given once; a commit that is being written, or is torn, waits.
    Rule 2: a writer whose disk is full takes back what it could not write whole, before any
    component reacted to it; a reader that has read of it begins anew, and `generation` says so.
    """

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


_ENCODER = msgspec.msgpack.Encoder()


class Durability(Enum):
    """What a commit survives when it returns."""

    MACHINE = "machine"
    """Every commit is synced, once for all its facts."""
    PROCESS = "process"
    """The journal is synced when it is closed: for what can be made again, as simulations can."""


def write(
    path: Path, header: Header, facts: Iterable[tuple[float, object]], *, kinds: Sequence[type]
) -> None:
    """A journal of a run that is over, durable when this returns; `facts` come with their now."""
    with Journal.create(path, header, kinds=kinds, durability=Durability.PROCESS) as journal:
        for now, event in facts:
            journal.append(event, now=now)
        journal.commit()


class Journal:
    """The one writer of a run's journal, whose facts become durable in groups.

    Rule 1: facts are in the journal before anyone reacts; `append` collects them, `commit` is the
    line.
    """

    def __init__(
        self, file: FramedFile, lock: int, *, kinds: Sequence[type], durability: Durability
    ) -> None:
        """Made by `create` and `resume`."""
        self._file = file
        self._lock = lock
        self._kinds = {*kinds, *OWN}
        self._durability = durability
        self._sequence = 0
        self._pending: list[bytes] = []
        self._posted: dict[str, int] = {}
        """By source, the last of what it posted."""
        self.epoch = 0
        self.now = 0.0
        """Of the last fact; the next may not be before it."""

    @classmethod
    def create(
        cls,
        path: Path,
        header: Header,
        *,
        kinds: Sequence[type],
        durability: Durability = Durability.MACHINE,
    ) -> Self:
        """A new journal; raises ConfigError where one is already."""
        with ExitStack() as stack:
            lock = _locked(path, create=True)
            stack.callback(os.close, lock)
            if read(path, kinds=kinds).header is not None:
                message = f"{path}: there is a journal already; resume the run or name another"
                raise ConfigError(message)
            file = FramedFile(path, magic=MAGIC)
            stack.callback(_let_go, file)
            file.append_raw(framed(_ENCODER.encode(header)))
            file.sync()
            sync(path.parent)
            stack.pop_all()
        return cls(file, lock, kinds=kinds, durability=durability)

    @classmethod
    def resume(
        cls,
        path: Path,
        *,
        at: float,
        kinds: Sequence[type],
        durability: Durability = Durability.MACHINE,
    ) -> tuple[Self, JournalContents]:
        """The writer of the next epoch, which is durable, and all that was recorded before.

        `at` is the calendar's time. A torn tail is cut off.
        """
        with ExitStack() as stack:
            lock = _locked(path, create=False)
            stack.callback(os.close, lock)
            found = read(path, kinds=kinds)
            if found.header is None:
                raise ConfigError(f"{path}: ends before its header; there is no run to resume")
            refuse_to_go_on(path, found.header)
            file = FramedFile(path, magic=MAGIC, sound_bytes=found.sound_bytes)
            stack.callback(_let_go, file)
            journal = cls(file, lock, kinds=kinds, durability=durability)
            journal._go_on(found.entries, at)
            stack.pop_all()
        return journal, found

    def _go_on(self, entries: Sequence[JournalEntry], at: float) -> None:
        self._sequence = len(entries)
        for entry in entries:
            self.epoch, self.now = entry.epoch, entry.now
            if entry.origin is not None:
                self._posted[entry.origin.source] = entry.origin.sequence
        self.epoch += 1
        self.append(Resumed(at=at), now=self.now)
        self.commit()
        self._file.sync()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None:
            self.close()
            return
        # What ended the run is what should be known of it.
        with suppress(OSError, TakenOver):
            self.close()

    def append(self, event: object, *, now: float, origin: Origin | None = None) -> int | None:
        """The fact's sequence in the journal, or None if its origin had posted it before.

        It is in the file after the next `commit`. A source posts in order, and again until it is
        answered.
        """
        if type(event) not in self._kinds:
            message = f"{type(event).__name__}: no kind of fact that this journal was opened for"
            raise InternalError(message)
        if not isfinite(now) or now < self.now:
            raise InternalError(f"time went from {self.now} to {now} in {self._file.path}")
        if origin is not None:
            last = self._posted.get(origin.source)
            if last is not None and origin.sequence <= last:
                return None
        envelope = Envelope(
            sequence=self._sequence,
            epoch=self.epoch,
            now=now,
            source=origin.source if origin else None,
            source_sequence=origin.sequence if origin else 0,
            kind=type(event).__name__,
            fact=msgspec.Raw(_ENCODER.encode(event)),
        )
        self._pending.append(framed(_ENCODER.encode(envelope)))
        if origin is not None:
            self._posted[origin.source] = origin.sequence
        self.now = now
        self._sequence += 1
        return envelope.sequence

    def commit(self) -> int:
        """Facts that were appended since the last commit and are in the file now, in one write.

        Raises OSError (a full disk) with the file as it was and the facts kept for the next
        commit, and TakenOver where another process has written to the file.
        """
        if not self._pending:
            return 0
        self._check_alone()
        before = self._file.size_bytes
        self._file.append_raw(b"".join(self._pending))
        if self._durability is Durability.MACHINE:
            try:
                self._file.sync()
            except OSError:
                self._file.cut(before)
                raise
        many = len(self._pending)
        self._pending.clear()
        return many

    def close(self) -> None:
        """Commits, syncs, and lets another writer in."""
        with ExitStack() as stack:
            stack.callback(os.close, self._lock)
            stack.callback(self._file.close)
            self.commit()

    def _check_alone(self) -> None:
        """Because a lock may not hold on every file system, and a writer may sleep for long."""
        size = self._file.path.stat().st_size
        if size != self._file.size_bytes:
            message = f"{_taken(self._file.path)}: it has {size} bytes, not the "
            message += f"{self._file.size_bytes} that epoch {self.epoch} left"
            raise TakenOver(message)


def _locked(path: Path, *, create: bool) -> int:
    try:
        lock = locked(path, create=create)
    except OSError as error:
        raise ConfigError(f"{path}: no journal that can be written: {error.strerror}") from error
    if lock is None:
        raise ConfigError(_taken(path))
    return lock


def _let_go(file: FramedFile) -> None:
    """What kept the journal from being opened is what should be known, and not that it was."""
    with suppress(OSError):
        file.close()


def _taken(path: Path) -> str:
    return f"{path}: another controller writes this journal"
