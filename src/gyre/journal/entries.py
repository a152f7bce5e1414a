"""What a journal consists of: a header, and facts with their place among all others.

The first frame is the header, every other one an entry: sequence, epoch, now, origin, kind, fact.
Rule 1: sequence counts without gaps, epoch and now never go back, also across a resume.
Rule 2: a kind the reader does not know is kept as it lies and may be skipped; what may not be
skipped needs a new major format, and that is refused by whoever does not know it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

MAGIC = b"GYREJRNL"
MAJOR, MINOR = 1, 1
"""MINOR grows with new kinds and new fields, which have defaults; MAJOR with anything else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """What is known of a run before anything happens in it."""

    run: str
    """Its name."""
    seed: int
    started_at: float
    """Seconds of the calendar; informative, because entries count from the start of the run."""
    shape: Mapping[str, Any]
    """The scheduler's shape in plain values."""
    notes: Mapping[str, Any] = field(default_factory=dict)
    """Whatever else a reader may want, in plain values: versions, host, configuration."""
    major: int = MAJOR
    minor: int = MINOR


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Who posted a fact, and its number among what they posted: the same one counts once."""

    source: str
    sequence: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumed:
    """Another writer goes on with the run, in an epoch of its own."""

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
