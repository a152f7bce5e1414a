"""A journal as it grows, read on from where it was left.

Rule 1: an entry is given once; a commit that is being written, or is torn, waits.
Rule 2: a writer whose disk is full takes back what it could not write whole, and nobody reacted to
it; whoever has read of it begins anew, and `generation` says so.
"""

from collections.abc import Sequence
from pathlib import Path

from gyre.journal.entries import MAGIC, Header, JournalEntry
from gyre.journal.reading import check_order, decoders_of, entry_of, header_of
from gyre.storage.frames import HEAD_BYTES, framed, payload_at, scan
from gyre.types.errors import ConfigError


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

    @property
    def num_entries(self) -> int:
        return 0 if self._last is None else self._last.sequence + 1

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
