"""The plain pass-through: pure ASGI, one shared client session, no look at the bytes."""

import argparse
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
import uvicorn

Send = Callable[[dict[str, Any]], Awaitable[None]]
Receive = Callable[[], Awaitable[dict[str, Any]]]

HOP_BY_HOP = {b"connection", b"keep-alive", b"transfer-encoding", b"host", b"content-length"}


class PassThrough:
    """The ASGI application: every request goes to one upstream, every byte comes back."""

    def __init__(self, upstream: str) -> None:
        self._upstream = upstream
        self._session: aiohttp.ClientSession | None = None

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
            return
        body = await read_body(receive)
        if self._session is None:
            raise RuntimeError("a request came before start-up ended")
        headers = {
            name.decode("latin-1"): value.decode("latin-1")
            for name, value in scope["headers"]
            if name not in HOP_BY_HOP
        }
        async with self._session.request(
            scope["method"], self._upstream + scope["path"], data=body, headers=headers
        ) as answer:
            await self.relay(body, answer, send)

    async def relay(self, body: bytes, answer: aiohttp.ClientResponse, send: Send) -> None:
        """Every byte of the answer has been sent on."""
        if answer.content_length is not None:
            await send_whole(send, answer.status, answer.content_type, await answer.read())
            return
        await send(start(answer.status, answer.content_type))
        async for chunk in answer.content.iter_any():
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        await receive()
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=300)
        timeout = aiohttp.ClientTimeout(total=None)
        self._session = aiohttp.ClientSession(
            connector=connector, timeout=timeout, auto_decompress=False
        )
        await self.opened()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self._session.close()
        await self.closed()
        await send({"type": "lifespan.shutdown.complete"})

    async def opened(self) -> None:
        """The event loop runs; calls may come after this."""

    async def closed(self) -> None:
        """No call will come after this."""


def start(status: int, content_type: str, length: int | None = None) -> dict[str, Any]:
    headers = [(b"content-type", content_type.encode("latin-1"))]
    if length is not None:
        headers.append((b"content-length", str(length).encode()))
    return {"type": "http.response.start", "status": status, "headers": headers}


async def send_whole(send: Send, status: int, content_type: str, body: bytes) -> None:
    await send(start(status, content_type, len(body)))
    await send({"type": "http.response.body", "body": body})


async def read_body(receive: Receive) -> bytes:
    parts = []
    more = True
    while more:
        message = await receive()
        parts.append(message.get("body", b""))
        more = message.get("more_body", False)
    return b"".join(parts) if len(parts) > 1 else parts[0]


def serve(application: PassThrough, port: int) -> None:
    uvicorn.run(
        application,
        port=port,
        loop="uvloop",
        http="httptools",
        log_level="warning",
        access_log=False,
        lifespan="on",
        backlog=4096,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--upstream", required=True)
    args = parser.parse_args()
    serve(PassThrough(args.upstream), args.port)


if __name__ == "__main__":
    main()
