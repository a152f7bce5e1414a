"""One reply of a chat model, from any endpoint that speaks as OpenAI's does."""

import asyncio
import json
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from gyre.types.errors import EvaluatorError

MOST_BYTES = 2**24
"""Of an answer."""
MOST_TRIES = 3
"""At one reply, while what refuses it may pass."""
PAUSE_S = 0.5
"""Before the second try; it doubles."""
MAY_PASS = {408, 409, 425, 429}
"""Refusals that may pass, besides those of 500 and above."""
MOST_TEXT = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeReply:
    """What the model said, and what it took."""

    message: Mapping[str, Any]
    """As it goes back into the conversation."""
    num_tokens: int
    """Prompt and reply together; 0 where the endpoint does not count."""

    @property
    def text(self) -> str:
        said = self.message.get("content")
        return said if isinstance(said, str) else ""

    @property
    def tool_calls(self) -> Sequence[object]:
        found = self.message.get("tool_calls")
        return found if isinstance(found, list) else []


class ChatEndpoint:
    """One model behind one address."""

    def __init__(self, url: str, *, model: str, key: str | None) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            message = f"evaluate.judge.url: expected http://host:port/v1, found {url!r}"
            raise EvaluatorError(message, retryable=False)
        self.model = model
        self._host = parts.hostname
        self._netloc = parts.netloc.rpartition("@")[2]
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._port = parts.port or (80 if self._tls is None else 443)
        self._path = f"{parts.path.rstrip('/')}/chat/completions"
        self._key = key

    async def reply(self, body: Mapping[str, Any]) -> JudgeReply:
        """Tried again while it may help; EvaluatorError after that."""
        sent = json.dumps({"model": self.model} | dict(body)).encode()
        for attempt in range(1, MOST_TRIES + 1):
            try:
                status, answer = await self._post(sent)
            except (OSError, EOFError, ValueError, asyncio.LimitOverrunError) as error:
                problem, may_pass = f"{type(error).__name__}: {error}", True
            else:
                if status == 200:
                    return _reply(answer)
                problem = f"{status} {answer[:MOST_TEXT].decode(errors='replace')}"
                may_pass = status in MAY_PASS or status >= 500
            if not may_pass or attempt == MOST_TRIES:
                message = f"judge at {self._netloc}: {problem}"
                raise EvaluatorError(message, retryable=may_pass)
            await asyncio.sleep(PAUSE_S * 2 ** (attempt - 1))
        raise AssertionError

    async def _post(self, body: bytes) -> tuple[int, bytes]:
        """Status and body of the answer; cancelled, nothing of it is left."""
        reader, writer = await asyncio.open_connection(self._host, self._port, ssl=self._tls)
        try:
            key = "" if self._key is None else f"authorization: Bearer {self._key}\r\n"
            head = (
                f"POST {self._path} HTTP/1.1\r\nhost: {self._netloc}\r\n{key}"
                f"content-type: application/json\r\ncontent-length: {len(body)}\r\n"
                f"accept: application/json\r\nconnection: close\r\n\r\n"
            )
            writer.write(head.encode() + body)
            await writer.drain()
            return await _answer(reader)
        finally:
            # Not closed politely, because an end that does not answer would hold up ours.
            writer.transport.abort()
            await asyncio.sleep(0)


async def _answer(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """ValueError for what is no answer."""
    status = 100
    while status in (100, 102, 103):
        lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        status = int(lines[0].partition(" ")[2].split(" ")[0])
    pairs = (line.partition(":") for line in lines[1:])
    headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
    if headers.get("transfer-encoding", "").lower() == "chunked":
        return status, await _chunks(reader)
    if "content-length" in headers:
        length = int(headers["content-length"])
        _refuse_long(length)
        return status, await reader.readexactly(length)
    found = await reader.read(MOST_BYTES + 1)
    while piece := await reader.read(MOST_BYTES):
        found += piece
        _refuse_long(len(found))
    return status, found


async def _chunks(reader: asyncio.StreamReader) -> bytes:
    found = bytearray()
    while True:
        line = await reader.readuntil(b"\r\n")
        length = int(line.split(b";")[0], 16)
        if length == 0:
            return bytes(found)
        _refuse_long(len(found) + length)
        found += await reader.readexactly(length)
        await reader.readexactly(2)


def _refuse_long(length: int) -> None:
    if length > MOST_BYTES:
        message = f"expected an answer of at most {MOST_BYTES} bytes"
        raise ValueError(message)


def _reply(answer: bytes) -> JudgeReply:
    try:
        data = json.loads(answer)
        message = data["choices"][0]["message"]
        usage = data.get("usage") or {}
        tokens = usage.get("total_tokens", 0)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        problem = f"judge: expected a completion, found {answer[:MOST_TEXT]!r}"
        raise EvaluatorError(problem) from error
    if not isinstance(message, dict):
        problem = f"judge: expected a message, found {answer[:MOST_TEXT]!r}"
        raise EvaluatorError(problem)
    return JudgeReply(message=message, num_tokens=max(0, tokens) if isinstance(tokens, int) else 0)
