"""Server-sent events, written one frame at a time."""

import msgspec

_ENCODER = msgspec.json.Encoder()


def named(event: str, data: object) -> bytes:
    """A frame that names its event, as Messages and Responses do."""
    return b"event: %b\ndata: %b\n\n" % (event.encode(), _ENCODER.encode(data))


def unnamed(data: object) -> bytes:
    """A frame of data alone, as Chat Completions has it."""
    return b"data: %b\n\n" % _ENCODER.encode(data)
