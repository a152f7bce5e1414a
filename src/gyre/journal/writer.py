"""The one writer of a journal, whose facts become durable in groups.

Rule 1: facts are in the journal before anyone reacts; `append` collects them, `commit` is the line.
"""

import os
from collections.abc import Iterable, Sequence
from contextlib import ExitStack, suppress
from enum import Enum
from math import isfinite
from pathlib import Path
from typing import Self

import msgspec

from gyre.journal.reader import (
    MAGIC,
    OWN,
    Envelope,
    Header,
    JournalContents,
    JournalEntry,
    Origin,
    Resumed,
    read,
    refuse_to_go_on,
)
from gyre.storage.files import sync
from gyre.storage.framed_file import FramedFile, framed, locked
from gyre.types.errors import ConfigError, InternalError, TakenOver

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
    """The one writer of a run's journal."""

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
        try:
            self.commit()
        finally:
            self._file.close()
            os.close(self._lock)

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
