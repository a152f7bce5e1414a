"""An execution's call log: framed, checksummed records appended to one file.

A frame is length and CRC-32 of its payload (two little-endian uint32), then the payload: one byte
for the kind of record and its msgpack. Format versions only grow; old logs must still read.
"""

import os
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from struct import Struct

import msgspec

from gyre.words.errors import LogDamaged
from gyre.words.records import (
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

MAGIC = b"GYRECALL"
SUFFIX = ".calls"
MOST_FRAME_BYTES = 2**30

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
_HEAD = Struct("<II")


def frame(record: CallRecord) -> bytes:
    """The bytes that stand for one record in a log."""
    payload = bytes((_NUMBERS[type(record)],)) + _ENCODER.encode(record)
    return _HEAD.pack(len(payload), zlib.crc32(payload)) + payload


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What a log holds, and where its sound part ends."""

    records: tuple[CallRecord, ...]
    sound_bytes: int
    torn_bytes: int
    """Bytes of a last frame that was being written when its writer died."""


def read(path: Path) -> Reading:
    """All records of a log; a torn tail is left out, damage before the tail raises LogDamaged."""
    data = path.read_bytes()
    if not data.startswith(MAGIC):
        if MAGIC.startswith(data):
            return Reading(records=(), sound_bytes=0, torn_bytes=len(data))
        message = f"{path}: not a call log: it does not begin with {MAGIC.decode()}"
        raise LogDamaged(message)
    records = []
    at = len(MAGIC)
    while (payload := _payload_at(data, at)) is not None:
        records.append(_decode(path, at, payload))
        at += _HEAD.size + len(payload)
    if at < len(data) and (later := _next_sound(data, at + 1)) is not None:
        message = (
            f"{path}: damaged at byte {at} (record {len(records) + 1}), "
            f"with a sound record after it at byte {later}"
        )
        raise LogDamaged(message)
    return Reading(records=tuple(records), sound_bytes=at, torn_bytes=len(data) - at)


def first(path: Path) -> LogOpened | None:
    """The record that opens a log, without reading the rest; None if it never got that far."""
    with path.open("rb") as file:
        data = file.read(65536)
    payload = _payload_at(data, len(MAGIC)) if data.startswith(MAGIC) else None
    record = _decode(path, len(MAGIC), payload) if payload is not None else None
    return record if isinstance(record, LogOpened) else None


def _payload_at(data: bytes, at: int) -> bytes | None:
    if at + _HEAD.size > len(data):
        return None
    length, checksum = _HEAD.unpack_from(data, at)
    end = at + _HEAD.size + length
    if length == 0 or length > MOST_FRAME_BYTES or end > len(data):
        return None
    payload = data[at + _HEAD.size : end]
    return payload if zlib.crc32(payload) == checksum else None


def _next_sound(data: bytes, start: int) -> int | None:
    """Because a damaged length looks like a torn tail, look for any sound frame behind it."""
    return next((at for at in range(start, len(data)) if _payload_at(data, at) is not None), None)


def _decode(path: Path, at: int, payload: bytes) -> CallRecord:
    decoder = _DECODERS.get(payload[0])
    if decoder is None:
        message = f"{path}: record of kind {payload[0]} at byte {at}; this Gyre knows 1 to 7"
        raise LogDamaged(message)
    try:
        record: CallRecord = decoder.decode(payload[1:])
    except msgspec.MsgspecError as error:
        message = f"{path}: record at byte {at} does not decode: {error}"
        raise LogDamaged(message) from error
    if isinstance(record, LogOpened) and record.format > FORMAT:
        message = f"{path}: format {record.format} is newer than {FORMAT}, which this Gyre reads"
        raise LogDamaged(message)
    return record


class CallLog:
    """The one writer of an execution's log; a record is in the file or it is not, never half."""

    def __init__(self, path: Path, *, sound_bytes: int = 0) -> None:
        self.path = path
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._end = sound_bytes
        self._closed = False
        os.ftruncate(self._fd, sound_bytes)
        if sound_bytes == 0:
            self.append_raw(MAGIC)

    @property
    def size_bytes(self) -> int:
        return self._end

    def append(self, *records: CallRecord) -> bytes:
        """The records survive the death of this process; `sync` makes them survive the machine's.

        Returns the bytes written. Raises OSError (a full disk) with the file as it was.
        """
        data = b"".join(map(frame, records))
        self.append_raw(data)
        return data

    def append_raw(self, data: bytes) -> None:
        """The same, of bytes that are frames already."""
        done = 0
        try:
            while done < len(data):
                done += os.pwrite(self._fd, data[done:] if done else data, self._end + done)
        except OSError:
            os.ftruncate(self._fd, self._end)
            raise
        self._end += len(data)

    def sync(self) -> None:
        """Every record appended before this call is on the disk; may run on another thread."""
        try:
            if not self._closed:
                os.fdatasync(self._fd)
        except OSError:
            # Closed by its owner in the same moment, which synced it.
            if not self._closed:
                raise

    def close(self) -> None:
        """Syncs and lets go of the file."""
        os.fdatasync(self._fd)
        self._closed = True
        os.close(self._fd)


def logs(folder: Path) -> Iterator[Path]:
    """Call logs in a run folder, in a fixed order."""
    return iter(sorted((folder / "executions").glob(f"*{SUFFIX}")))


def path_of(folder: Path, execution: str) -> Path:
    """Where a run folder keeps the log of an execution."""
    return folder / "executions" / f"{execution}{SUFFIX}"
