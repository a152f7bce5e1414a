"""Clients that send too much, too deep, too slow or nothing at all, beside agents at work."""

import asyncio
import contextlib
from pathlib import Path

import pytest
from tests.chaos.talking import assert_exact, talked

from gyre.storage.call_log import logs, read
from gyre.types.call_records import LogOpened

pytestmark = pytest.mark.slow

AGENTS, TURNS = 6, 12
PATH = "/v1/chat/completions"
MESSAGE = b'{"role":"user","content":"x"}'
DEEP = b"[" * 200_000 + b"]" * 200_000
MANY_MESSAGES = b'{"model":"m","messages":[' + b",".join([MESSAGE] * 1_000_000) + b"]}"
ATTACKS = {
    "a gigabyte": (b"", 2**30, "413"),
    "a million messages": (MANY_MESSAGES, None, "413"),
    "deep": (b'{"model":"m","messages":' + DEEP + b"}", None, "400"),
    "not UTF-8": (b'{"model":"m","messages":[{"role":"user","content":"\xff\xfe"}]}', None, "400"),
    "no JSON": (b'{"model":"m","messages":[' + b"1e999999," * 1000, None, "400"),
    "keys twice": (
        b'{"model":"m","messages":[' + MESSAGE + b'],"messages":7}', None, "400",
    ),
}  # fmt: skip
"""What is sent, the length that is claimed for it, and the status it gets."""


def peak_bytes(pid: int) -> int:
    """The most that a process has had in memory."""
    (line,) = [
        one
        for one in Path(f"/proc/{pid}/status").read_text().splitlines()
        if one.startswith("VmHWM:")
    ]
    return int(line.split()[1]) * 1024


async def send(port: int, key: str, body: bytes, claimed: int | None) -> str:
    """The status that a request gets."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    length = len(body) if claimed is None else claimed
    head = f"POST {PATH} HTTP/1.1\r\nhost: p\r\nauthorization: Bearer {key}\r\n"
    writer.write(f"{head}content-length: {length}\r\n\r\n".encode())
    with contextlib.suppress(ConnectionError):
        writer.write(body)
        await writer.drain()
    status = (await reader.readline()).split()[1].decode()
    writer.close()
    return status


async def trickle(port: int, key: str, over: asyncio.Event) -> int:
    """A request that goes on without end, a byte at a time; how many bytes it had sent."""
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"POST {PATH} HTTP/1.1\r\nhost: p\r\nauthorization: Bearer {key}\r\n"
    writer.write(f"{head}transfer-encoding: chunked\r\n\r\n".encode())
    sent = 0
    while not over.is_set():
        writer.write(b"1\r\n \r\n")
        sent += 1
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.05):
                await over.wait()
    writer.transport.abort()
    return sent


def test_agents_do_not_notice_what_others_send(stage):
    """FAULTS 34: all of it refused, nothing of it recorded, memory and others' calls bounded."""
    engine = stage.engine(chunk_tokens=64, chunk_delay_s=0.01)
    proxy = stage.proxy(engine, options=("--calls-at-once", "128"))
    attacker = proxy.open("attacker")
    statuses = {}
    trickled = []
    peaks = []

    async def attack(talk):
        # Others have something to say yet, however long an attack takes.
        talk.holds_last = asyncio.Event()
        await talk.wait_done(5, in_flight=2)
        peaks.append(peak_bytes(proxy.pid))
        over = asyncio.Event()
        slow = [asyncio.create_task(trickle(proxy.port, attacker.key, over)) for _ in range(40)]
        for name, (body, claimed, _) in ATTACKS.items():
            statuses[name] = await send(proxy.port, attacker.key, body, claimed)
        peaks.append(peak_bytes(proxy.pid))
        talk.holds_last.set()
        await talk.wait_done(AGENTS * TURNS // 2)
        assert talk.in_flight, "nobody else was there"
        over.set()
        trickled.extend(await asyncio.gather(*slow))

    talk = talked(proxy, agents=AGENTS, turns=TURNS, meanwhile=attack)
    (own,) = [path for path in logs(stage.folder / "run") if path.stem == "attacker"]

    assert [] == talk.refused
    assert {name: status for name, (_, _, status) in ATTACKS.items()} == statuses
    assert 40 == len(trickled)
    assert [LogOpened] == [type(one) for one in read(own).records]
    assert peaks[1] - peaks[0] < 256 * 2**20
    assert talk.slowest_s() < talk.bearable_s()
    own.unlink()
    assert_exact(stage.folder / "run", [engine], agents=AGENTS, turns=TURNS)
