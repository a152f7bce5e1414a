"""An execution's call log: framed, checksummed records appended to one file.

The payload of a frame is one byte for the kind of record and its msgpack. Format versions only
grow; old logs must still read.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from gyre.storage.framed_file import FramedFile, framed, payload_at, scan
from gyre.types.call_records import (
    FORMAT,
    CallClosed,
    CallDelivered,
    CallEchoed,
    CallFailed,
    CallOpened,
    CallRecord,
    LogOpened,
    LogSealed,
)
from gyre.types.errors import LogDamaged

MAGIC = b"GYRECALL"
SUFFIX = ".calls"

_KINDS: dict[int, type[CallRecord]] = {
    1: LogOpened,
    2: CallOpened,
    3: CallClosed,
    4: CallFailed,
    5: CallDelivered,
    6: CallEchoed,
    7: LogSealed,
}
_NUMBERS: dict[type[CallRecord], int] = {kind: number for number, kind in _KINDS.items()}
_DECODERS = {number: msgspec.msgpack.Decoder(kind) for number, kind in _KINDS.items()}
_ENCODER = msgspec.msgpack.Encoder()


def frame(record: CallRecord) -> bytes:
    """The bytes that stand for one record in a log."""
    return framed(bytes((_NUMBERS[type(record)],)) + _ENCODER.encode(record))


@dataclass(frozen=True, slots=True, kw_only=True)
class CallLogContents:
    """The records of a call log, and where its sound part ends."""

    records: tuple[CallRecord, ...]
    sound_bytes: int
    torn_bytes: int
    """Bytes of a last frame that was being written when its writer died."""


def read(path: Path) -> CallLogContents:
    """All records of a log; a torn tail is left out, damage before the tail raises LogDamaged."""
    found = scan(path, magic=MAGIC, what="call log")
    return CallLogContents(
        records=tuple(_decode(path, at, payload) for at, payload in found.payloads),
        sound_bytes=found.sound_bytes,
        torn_bytes=found.torn_bytes,
    )


def first(path: Path) -> LogOpened | None:
    """The record that opens a log, without reading the rest; None if it never got that far."""
    with path.open("rb") as file:
        data = file.read(65536)
    payload = payload_at(data, len(MAGIC)) if data.startswith(MAGIC) else None
    record = _decode(path, len(MAGIC), payload) if payload is not None else None
    return record if isinstance(record, LogOpened) else None


def _decode(path: Path, at: int, payload: bytes) -> CallRecord:
    decoder = _DECODERS.get(payload[0])
    if decoder is None:
        message = f"{path}: record of kind {payload[0]} at byte {at}; this Gyre knows 1 to 7"
        raise LogDamaged(message)
    try:
        record: CallRecord = decoder.decode(payload[1:])
    except msgspec.MsgspecError as error:
        raise LogDamaged(f"{path}: record at byte {at} does not decode: {error}") from error
    if isinstance(record, LogOpened) and record.format > FORMAT:
        message = f"{path}: format {record.format} is newer than {FORMAT}, which this Gyre reads"
        raise LogDamaged(message)
    return record


class CallLog(FramedFile):
    """The one writer of an execution's log; a record is in the file or it is not, never half."""

    def __init__(self, path: Path, *, sound_bytes: int = 0) -> None:
        super().__init__(path, magic=MAGIC, sound_bytes=sound_bytes)

    def append(self, *records: CallRecord) -> bytes:
        """The records survive the death of this process; `sync` makes them survive the machine's.

        Returns the bytes written. Raises OSError (a full disk) with the file as it was.
        """
        data = b"".join(map(frame, records))
        self.append_raw(data)
        return data


def logs(folder: Path) -> Iterator[Path]:
    """Call logs in a run folder, in a fixed order."""
    return iter(sorted((folder / "executions").glob(f"*{SUFFIX}")))


def path_of(folder: Path, execution: str) -> Path:
    """Where a run folder keeps the log of an execution."""
    return folder / "executions" / f"{execution}{SUFFIX}"
