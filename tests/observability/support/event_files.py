"""Event files read back, every checksum computed the slow way."""

import struct
from pathlib import Path

from tensorboardX.proto.event_pb2 import Event

from gyre.testing.trackers import LoggedValue


def events(folder: Path) -> list[Event]:
    return [
        Event.FromString(record)
        for path in sorted(folder.glob("*.tfevents.*"))
        for record in records(path.read_bytes())
    ]


def logged(folder: Path) -> list[LoggedValue]:
    return [
        LoggedValue(name=value.tag, step=event.step, value=value.simple_value)
        for event in events(folder)
        for value in event.summary.value
    ]


def records(data: bytes) -> list[bytes]:
    found = []
    while data:
        length, sum_of_length = struct.unpack_from("<QI", data)
        body, (sum_of_body,) = data[12 : 12 + length], struct.unpack_from("<I", data, 12 + length)
        assert (masked(data[:8]), masked(body)) == (sum_of_length, sum_of_body)
        found.append(body)
        data = data[16 + length :]
    return found


def masked(data: bytes) -> int:
    """CRC-32C, bit by bit, rotated and shifted by a constant as the format asks."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
