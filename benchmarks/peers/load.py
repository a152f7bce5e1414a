"""The load generator: conversations in OpenAI Chat over raw keep-alive sockets."""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import httptools
import orjson
from benchmarks.peers.replies import TOOLS, said, tool_output

SYSTEM = "You are a careful programmer. Read before you write, test before you claim."
USER = "Call {number}: find the first record the parser drops and say which line of it does so."


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """How one execution reaches a peer."""

    path: str
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One reply, whole, with its times."""

    status: int
    body: bytes
    first_byte_s: float
    total_s: float


class Connection(asyncio.Protocol):
    """One keep-alive connection that carries one request at a time."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._parts: list[bytes] = []
        self._answer: asyncio.Future[Answer] | None = None
        self._sent_at = 0.0
        self._first_at = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have the methods and not the base class.
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if not self._first_at:
            self._first_at = time.perf_counter()
        self._parser.feed_data(data)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(ConnectionError(f"closed before the reply ended: {exc}"))

    def on_body(self, body: bytes) -> None:
        self._parts.append(body)

    def on_message_complete(self) -> None:
        assert self._answer is not None
        if not self._answer.done():
            now = time.perf_counter()
            self._answer.set_result(
                Answer(
                    status=self._parser.get_status_code(),
                    body=b"".join(self._parts),
                    first_byte_s=self._first_at - self._sent_at,
                    total_s=now - self._sent_at,
                )
            )
        self._parser = httptools.HttpResponseParser(self)

    async def post(self, route: Route, body: bytes) -> Answer:
        """The reply to one request."""
        assert self._transport is not None
        lines = [f"POST {route.path} HTTP/1.1", "host: localhost", f"content-length: {len(body)}"]
        lines += ["content-type: application/json"]
        lines += [f"{name}: {value}" for name, value in route.headers.items()]
        self._parts = []
        self._first_at = 0.0
        self._answer = asyncio.get_running_loop().create_future()
        self._sent_at = time.perf_counter()
        self._transport.write(("\r\n".join(lines) + "\r\n\r\n").encode())
        self._transport.write(body)
        return await self._answer

    def close(self) -> None:
        assert self._transport is not None
        self._transport.close()


@asynccontextmanager
async def connected(port: int) -> AsyncIterator[Connection]:
    loop = asyncio.get_running_loop()
    _, connection = await loop.create_connection(Connection, "127.0.0.1", port)
    try:
        yield connection
    finally:
        connection.close()


class Conversation:
    """A history that grows: its messages are kept as JSON, so that a long one costs little."""

    def __init__(self, *, tools: bool, stream: bool) -> None:
        tail: dict[str, Any] = {"max_tokens": 1024, "temperature": 1.0, "stream": stream}
        if tools:
            tail["tools"] = TOOLS
        self._tail = b"]," + orjson.dumps(tail)[1:]
        self._messages = bytearray(orjson.dumps({"role": "system", "content": SYSTEM}))
        self.num_calls = 0

    @property
    def num_bytes(self) -> int:
        """Memory of the messages."""
        return self._messages.__sizeof__()

    @property
    def body(self) -> bytes:
        return b'{"model":"policy","messages":[' + self._messages + self._tail

    def add(self, message: Mapping[str, Any]) -> None:
        self._messages += b"," + orjson.dumps(message)

    def ask(self) -> None:
        """Add a user message unlike any other of this conversation."""
        self.add({"role": "user", "content": USER.format(number=self.num_calls)})
        self.num_calls += 1

    def go_on(self, message: Mapping[str, Any], output_chars: int) -> None:
        """Add a reply as it came, and the output of the tools it calls."""
        self.add(message)
        for call in message.get("tool_calls", ()):
            output = tool_output(self.num_calls, output_chars)
            self.add({"role": "tool", "tool_call_id": call["id"], "content": output})
        self.num_calls += 1

    def fill(self, num_bytes: int, output_chars: int) -> None:
        """Grow to the size as earlier calls would have, for peers that remember nothing."""
        while len(self._messages) < num_bytes:
            reply = said(self.num_calls, tools=True)
            function = {"name": "shell", "arguments": reply.arguments}
            call = {"id": f"call_{self.num_calls}", "type": "function", "function": function}
            message = {"role": "assistant", "content": reply.text, "tool_calls": [call]}
            self.go_on(message, output_chars)


def message_of(answer: Answer) -> dict[str, Any]:
    """The assistant message of a whole (not streamed) reply, less what a harness drops."""
    if answer.status != 200:
        raise RuntimeError(f"status {answer.status}: {answer.body[:500]!r}")
    message = orjson.loads(answer.body)["choices"][0]["message"]
    calls = [
        {"id": call["id"], "type": "function", "function": call["function"]}
        for call in message.get("tool_calls") or ()
    ]
    kept: dict[str, Any] = {"role": "assistant", "content": message["content"]}
    if calls:
        kept["tool_calls"] = calls
    return kept
