"""Stands between a program and the proxy: notes every request and who sent it, fails on demand."""

import hashlib
import os
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

import aiohttp
from aiohttp import web

FaultKind = Literal[
    "status",  # answered with `status`, and never forwarded
    "refuse",  # the connection is closed without an answer
    "cut",  # forwarded, and closed on both sides before a token of the reply is sampled
    "lose",  # forwarded and answered, but the answer never arrives
]

CALL_PATHS = ("/v1/messages", "/v1/chat/completions", "/v1/responses")
_HOP = {"connection", "transfer-encoding", "content-length", "keep-alive", "date", "server"}


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayFault:
    """What happens to one call instead of being relayed."""

    call: int
    """Which one, counted from 1 in order of arrival; retries count."""
    kind: FaultKind
    status: int = 529


@dataclass(slots=True, kw_only=True)
class Seen:
    """One request that came over the wire."""

    method: str
    path: str
    call: int | None
    """Its number among the model calls; None for others."""
    digest: str
    """Of the body, so that a retry can be told."""
    user_agent: str
    session: int | None
    """Session of the process that holds the other end of the connection."""
    status: int | None = None
    """What the program got; None when it got nothing."""


class Watcher(Protocol):
    """Told of every call as it passes."""

    async def asked(self, call: int) -> None:
        """Before it is forwarded."""
        ...

    async def answered(self, call: int) -> None:
        """When the proxy's answer begins, before any of it is passed on."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Relay:
    """A relay's address, its notes, and the way to end it."""

    port: int
    seen: list[Seen]
    close: Callable[[], Awaitable[None]]


async def start(
    target: str,
    *,
    faults: tuple[RelayFault, ...],
    watcher: Watcher,
) -> Relay:
    """A relay to `target` that listens."""
    seen: list[Seen] = []
    planned = {fault.call: fault for fault in faults}
    session = aiohttp.ClientSession(
        timeout=aiohttp.ClientTimeout(total=None), auto_decompress=False
    )
    num_calls = 0

    async def handle(request: web.Request) -> web.StreamResponse:
        nonlocal num_calls
        body = await request.read()
        is_call = request.method == "POST" and request.path.endswith(CALL_PATHS)
        num_calls += is_call
        note = _note(request, body, num_calls if is_call else None)
        seen.append(note)
        fault = None if note.call is None else planned.get(note.call)
        if fault is not None and fault.kind in ("status", "refuse"):
            return _turned_away(request, note, fault)
        if note.call is not None:
            await watcher.asked(note.call)
        headers = {k: v for k, v in request.headers.items() if k.lower() not in {*_HOP, "host"}}
        url = target + request.path_qs
        try:
            async with session.request(request.method, url, headers=headers, data=body) as answer:
                if note.call is not None:
                    await watcher.answered(note.call)
                return await _passed_on(request, answer, note, fault)
        except aiohttp.ClientError:
            # The proxy is gone: so is the connection, as if there were no relay.
            return _hung_up(request)

    app = web.Application(client_max_size=2**28)
    app.router.add_route("*", "/{path:.*}", handle)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()

    async def close() -> None:
        await session.close()
        await runner.cleanup()

    return Relay(port=runner.addresses[0][1], seen=seen, close=close)


def _turned_away(request: web.Request, note: Seen, fault: RelayFault) -> web.StreamResponse:
    if fault.kind == "refuse":
        return _hung_up(request)
    note.status = fault.status
    said = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
    return web.json_response(said, status=fault.status)


async def _passed_on(
    request: web.Request,
    answer: aiohttp.ClientResponse,
    note: Seen,
    fault: RelayFault | None,
) -> web.StreamResponse:
    if fault is not None:
        if fault.kind == "lose":
            await answer.read()
        answer.close()
        return _hung_up(request)
    headers = {k: v for k, v in answer.headers.items() if k.lower() not in _HOP}
    reply = web.StreamResponse(status=answer.status, headers=headers)
    note.status = answer.status
    await reply.prepare(request)
    async for piece in answer.content.iter_any():
        await reply.write(piece)
    await reply.write_eof()
    return reply


def _hung_up(request: web.Request) -> web.StreamResponse:
    if request.transport is not None:
        request.transport.abort()
    return web.Response()


def _note(request: web.Request, body: bytes, call: int | None) -> Seen:
    line = request.transport
    peer = None if line is None else line.get_extra_info("peername")
    own = None if line is None else line.get_extra_info("sockname")
    return Seen(
        method=request.method,
        path=request.path,
        call=call,
        digest=hashlib.sha256(body).hexdigest(),
        user_agent=request.headers.get("user-agent", ""),
        session=None if peer is None or own is None else _session(peer[1], own[1]),
    )


LOOKS, LOOK_S = 25, 0.02


def _session(port: int, to: int) -> int | None:
    """Session of the process whose socket connects these local ports in this namespace.

    Processes that ask different servers may have the same port. The tables change while they are
    read, so one look that finds nothing proves nothing.
    """
    for _ in range(LOOKS):
        rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        inodes = [row[9] for row in rows if (_port(row[1]), _port(row[2])) == (port, to)]
        wanted = {f"socket:[{inode}]" for inode in inodes}
        for process in Path("/proc").iterdir():
            if process.name.isdecimal() and wanted & set(_open_files(process)):
                return os.getsid(int(process.name))
        time.sleep(LOOK_S)
    return None


def _port(address: str) -> int:
    """Of an address as the kernel's table has it."""
    return int(address.rpartition(":")[2], 16)


def _open_files(process: Path) -> Iterator[str]:
    """What a process has open; a file or a process that ends meanwhile is passed over."""
    try:
        descriptors = list((process / "fd").iterdir())
    except OSError:
        return
    for descriptor in descriptors:
        try:
            yield str(descriptor.readlink())
        except OSError:
            continue
