"""Server-sent events, written and parsed."""

import msgspec

MOST_BYTES = 512 * 2**20
"""An event longer than this is garbage; a cumulative event of a long reply is some megabytes."""


class EventTooLong(ValueError):
    """The stream sends too many bytes without the end of an event."""


class SseParser:
    """Collects bytes of one stream and gives the data of each event once it is whole."""

    def __init__(self) -> None:
        self._held = bytearray()
        self._seen = 0
        self._data: list[bytes] = []
        self._data_bytes = 0

    def feed(self, arrived: bytes) -> list[bytes]:
        """The data of the events that these bytes complete."""
        self._held += arrived
        self._refuse_long()
        complete: list[bytes] = []
        start = 0
        # Only what has just arrived is searched, because a long event comes in many pieces.
        while (end := self._held.find(b"\n", max(start, self._seen))) >= 0:
            line = bytes(memoryview(self._held)[start:end])
            start = end + 1
            self._take(line.removesuffix(b"\r"), complete)
        del self._held[:start]
        self._seen = len(self._held)
        return complete

    def _take(self, line: bytes, complete: list[bytes]) -> None:
        if not line:
            if self._data:
                complete.append(b"\n".join(self._data))
                self._data, self._data_bytes = [], 0
        elif line.startswith(b"data:"):
            self._data.append(line[5:].removeprefix(b" "))
            self._data_bytes += len(line)
            self._refuse_long()

    def _refuse_long(self) -> None:
        """Lines of an event that has not ended are held as well."""
        if max(len(self._held), self._data_bytes) > MOST_BYTES:
            raise EventTooLong(f"an event of more than {MOST_BYTES} bytes")


_ENCODER = msgspec.json.Encoder()


def named(event: str, data: object) -> bytes:
    """A frame that names its event, as Messages and Responses do."""
    return b"event: %b\ndata: %b\n\n" % (event.encode(), _ENCODER.encode(data))


def unnamed(data: object) -> bytes:
    """A frame of data alone, as Chat Completions has it."""
    return b"data: %b\n\n" % _ENCODER.encode(data)
