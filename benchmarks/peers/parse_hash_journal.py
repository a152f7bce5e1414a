"""The floor for a recorder: pass-through that parses, hashes and journals, and does no more."""

import argparse
import asyncio
import os
import struct
from pathlib import Path

import aiohttp
import orjson
import xxhash
from benchmarks.peers.passthrough import PassThrough, Send, send_whole, serve, start

FRAME = struct.Struct("<II16s")


class Journal:
    """An append-only file; whoever appends waits for a sync that many may share."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._pending: list[bytes] = []
        self._waiting: list[asyncio.Future[None]] = []
        self._writer: asyncio.Task[None] | None = None

    async def append(self, *frames: bytes) -> None:
        """The frames are on disk."""
        loop = asyncio.get_running_loop()
        durable = loop.create_future()
        self._pending.extend(frames)
        self._waiting.append(durable)
        if self._writer is None or self._writer.done():
            self._writer = loop.create_task(self._commit())
        await durable

    async def _commit(self) -> None:
        loop = asyncio.get_running_loop()
        while self._waiting:
            frames, self._pending = self._pending, []
            waiting, self._waiting = self._waiting, []
            await loop.run_in_executor(None, self._write, frames)
            for durable in waiting:
                if not durable.done():
                    durable.set_result(None)

    def _write(self, frames: list[bytes]) -> None:
        # One writev per 512 frames, because IOV_MAX is 1,024 and a frame is two buffers at most.
        for first in range(0, len(frames), 512):
            batch = frames[first : first + 512]
            if os.writev(self._file, batch) != sum(map(len, batch)):
                raise OSError("short write to the journal")
        os.fdatasync(self._file)

    def close(self) -> None:
        os.close(self._file)


class ParseHashJournal(PassThrough):
    """The pass-through with a durable record of every call before its reply."""

    def __init__(self, upstream: str, path: Path) -> None:
        super().__init__(upstream)
        self._path = path
        self._journal: Journal | None = None

    async def opened(self) -> None:
        self._journal = Journal(self._path)

    async def closed(self) -> None:
        if self._journal is not None:
            self._journal.close()

    async def relay(self, body: bytes, answer: aiohttp.ClientResponse, send: Send) -> None:
        """The request is valid JSON, and request and reply are on disk, before the reply goes."""
        if self._journal is None:
            raise RuntimeError("a request came before start-up ended")
        reply = await answer.read()
        if body:
            request = orjson.loads(body)
            if not isinstance(request["messages"], list):
                raise TypeError("messages: expected a list")
            digest = xxhash.xxh3_128_digest(body)
            head = FRAME.pack(len(body), len(reply), digest)
            await self._journal.append(head, body, reply)
        if answer.content_length is not None:
            await send_whole(send, answer.status, answer.content_type, reply)
            return
        await send(start(answer.status, answer.content_type))
        await send({"type": "http.response.body", "body": reply})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--upstream", required=True)
    parser.add_argument("--journal", type=Path, required=True)
    args = parser.parse_args()
    serve(ParseHashJournal(args.upstream, args.journal), args.port)


if __name__ == "__main__":
    main()
