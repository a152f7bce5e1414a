"""Requests to an ASGI application in this process, and its answers."""

import asyncio
import json
from dataclasses import dataclass, field
from urllib.parse import urlsplit


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self):
        return json.loads(self.body)


@dataclass
class Asking:
    """One request: its parts as they come, until the client goes."""

    app: object
    path: str
    headers: dict[str, str] = field(default_factory=dict)
    method: str = "GET"

    def __post_init__(self):
        self._gone = asyncio.Event()
        self._parts = asyncio.Queue()
        self._asked = False
        self._task = asyncio.create_task(self.app(self._scope(), self._receive, self._parts.put))

    def _scope(self):
        found = urlsplit(self.path)
        headers = {"host": "127.0.0.1:8000"} | self.headers
        return {
            "type": "http",
            "method": self.method,
            "path": found.path,
            "query_string": found.query.encode(),
            "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
        }

    async def _receive(self):
        if not self._asked:
            self._asked = True
            return {"type": "http.request", "body": b"", "more_body": False}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def part(self):
        """The next one; fails with the application if that fails."""
        getting = asyncio.create_task(self._parts.get())
        async with asyncio.timeout(180):
            await asyncio.wait([getting, self._task], return_when=asyncio.FIRST_COMPLETED)
            if not getting.done():
                self._task.result()
            return await getting

    async def whole(self):
        start, body = await self.part(), b""
        while True:
            part = await self.part()
            body += part["body"]
            if not part["more_body"]:
                await self._task
                headers = {name.decode(): value.decode() for name, value in start["headers"]}
                return Answer(start["status"], headers, body)

    async def news(self):
        """The next message of a stream of events, pings left out."""
        while True:
            part = await self.part()
            if part["type"] == "http.response.body" and part["body"].startswith(b"event: "):
                event, data = part["body"].decode().rstrip("\n").split("\n")
                return event.removeprefix("event: "), json.loads(data.removeprefix("data: "))

    async def leave(self):
        self._gone.set()
        async with asyncio.timeout(180):
            await self._task
