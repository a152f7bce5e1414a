"""HTTP over ASGI as servers of a run need it: whole bodies in, bodies or event streams out."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any

from gyre.types.errors import RequestError, TooLarge

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

JSON = b"application/json"
EVENTS = b"text/event-stream; charset=utf-8"


class ClientGone(Exception):
    """The client closed its connection before the answer was whole."""


class Exchange:
    """One HTTP request of an ASGI application, and its answer."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.headers: dict[str, str] = {
            name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]
        }
        self._receive = receive
        self._send = send
        self.status: int | None = None
        """What was answered; None before that."""

    async def body(self, *, most_bytes: int, within_s: float) -> bytes:
        """The whole body; raises RequestError when it is too large, too slow or encoded."""
        if self.headers.get("content-encoding", "identity") != "identity":
            raise RequestError("content-encoding: expected none")
        declared = self.headers.get("content-length", "0")
        if declared.isdecimal() and int(declared) > most_bytes:
            raise _too_large(most_bytes)
        chunks: list[bytes] = []
        total = 0
        try:
            async with asyncio.timeout(within_s):
                while True:
                    event = await self._receive()
                    if event["type"] == "http.disconnect":
                        raise ClientGone
                    chunk: bytes = event.get("body", b"")
                    total += len(chunk)
                    if total > most_bytes:
                        raise _too_large(most_bytes)
                    chunks.append(chunk)
                    if not event.get("more_body", False):
                        return chunks[0] if len(chunks) == 1 else b"".join(chunks)
        except TimeoutError as error:
            raise RequestError(f"the body did not arrive within {within_s:g} s") from error

    async def gone(self) -> None:
        """Returns when the client has closed its connection; call it only after the body."""
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def start(
        self, status: int, kind: bytes, extra: Mapping[bytes, bytes] | None = None
    ) -> None:
        self.status = status
        headers = [(b"content-type", kind), *(extra or {}).items()]
        await self._send({"type": "http.response.start", "status": status, "headers": headers})

    async def write(self, data: bytes, *, last: bool = False) -> None:
        await self._send({"type": "http.response.body", "body": data, "more_body": not last})

    async def answer(
        self,
        status: int,
        data: bytes,
        kind: bytes = JSON,
        extra: Mapping[bytes, bytes] | None = None,
    ) -> None:
        length = {b"content-length": str(len(data)).encode()}
        await self.start(status, kind, length | dict(extra or {}))
        await self.finish(data)

    async def finish(self, data: bytes) -> None:
        """The last of the answer; returns when the socket has taken it.

        A server holds a write back while bytes of the one before are left, so an empty one follows.
        """
        if data:
            await self.write(data)
        await self.write(b"", last=True)


def _too_large(most_bytes: int) -> TooLarge:
    return TooLarge(f"body: expected at most {most_bytes} bytes")
