"""Bytes go to the proxy and back, whole, wherever it is by then."""

import asyncio
import os
import socket

import pytest
from tests.waiting import PATIENCE_S, until

from gyre.sandboxes import proxy_relay
from gyre.sandboxes.local import netns_script
from gyre.sandboxes.proxy_relay import Relay, Upstream, listen_inside, through
from gyre.types.errors import SandboxError


async def echo(reader, writer):
    """Everything comes back after the end of it."""
    writer.write(await reader.read())
    writer.close()


async def asked(port, data):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(data)
    writer.write_eof()
    answer = await reader.read()
    writer.close()
    return answer


def relayed(work, **settings):
    """`work` with the port of a relay and a list whose last item is the proxy's address."""

    async def live():
        address = []
        listening = socket.create_server(("127.0.0.1", 0))
        relay = Relay(listening, Upstream(lambda: address[-1], **settings))
        await relay.open()
        try:
            async with asyncio.timeout(PATIENCE_S):
                return await work(listening.getsockname()[1], address)
        finally:
            await relay.close()

    return asyncio.run(live())


def test_large_bodies_go_both_ways():
    data = bytes(range(256)) * 10_000

    async def work(port, address):
        async with await asyncio.start_server(echo, "127.0.0.1", 0) as proxy:
            address.append(proxy.sockets[0].getsockname())
            return await asyncio.gather(*(asked(port, data) for _ in range(8)))

    assert [data] * 8 == relayed(work)


def test_a_proxy_that_has_moved_is_found():
    async def work(port, address):
        answers = []
        for text in (b"one", b"two"):
            async with await asyncio.start_server(echo, "127.0.0.1", 0) as proxy:
                address.append(proxy.sockets[0].getsockname())
                answers.append(await asked(port, text))
        return answers

    assert [b"one", b"two"] == relayed(work)


def test_a_proxy_that_is_just_being_started_is_waited_for():
    async def work(port, address):
        with socket.socket() as held:
            held.bind(("127.0.0.1", 0))
            address.append(held.getsockname())
            asking = asyncio.create_task(asked(port, b"early"))
            await asyncio.sleep(0)
            async with await asyncio.start_server(echo, sock=held):
                return await asking

    assert b"early" == relayed(work)


def test_a_proxy_that_hangs_up_ends_the_connection():
    async def hang_up(reader, writer):
        await reader.read(1)
        writer.transport.abort()

    async def work(port, address):
        async with await asyncio.start_server(hang_up, "127.0.0.1", 0) as proxy:
            address.append(proxy.sockets[0].getsockname())
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"hello")
            answer = await reader.read()
            writer.close()
            return answer

    assert b"" == relayed(work)


def test_connections_are_held_while_the_proxy_is_away():
    """It answers, is gone with its socket, and comes back at another address."""
    gone, refused = set(), []

    async def connect(host, port):
        # Its port may be somebody else's by now.
        if port in gone:
            refused.append(port)
            raise ConnectionRefusedError
        return await asyncio.open_connection(host, port)

    async def work(port, address):
        async with await asyncio.start_server(echo, "127.0.0.1", 0) as proxy:
            address.append(proxy.sockets[0].getsockname())
            answers = [await asked(port, b"before")]
        gone.add(address[-1][1])
        held = [asyncio.create_task(asked(port, b"during")) for _ in range(4)]
        await until(lambda: len(refused) >= 5 * len(held), "attempts in vain")
        done = [one for one in held if one.done()]
        async with await asyncio.start_server(echo, "127.0.0.1", 0) as proxy:
            address.append(proxy.sockets[0].getsockname())
            gone.clear()
            return [*answers, len(done), *await asyncio.gather(*held)]

    assert [b"before", 0, *[b"during"] * 4] == relayed(work, connect=connect)


def test_nobody_is_held_for_ever():
    async def work(port, address):
        with socket.socket() as gone:
            gone.bind(("127.0.0.1", 0))
            address.append(gone.getsockname())
            return await asked(port, b"anybody?")

    assert b"" == relayed(work, hold_s=0.0)


def test_a_proxy_that_hangs_is_left_for_one_that_does_not():
    num_asked = 0

    async def connect(host, port):
        nonlocal num_asked
        num_asked += 1
        if num_asked == 1:
            await asyncio.Event().wait()
        return await asyncio.open_connection(host, port)

    async def work(port, address):
        async with await asyncio.start_server(echo, "127.0.0.1", 0) as proxy:
            address.append(proxy.sockets[0].getsockname())
            return await asked(port, b"hello")

    assert b"hello" == relayed(work, connect=connect, connect_s=0.5)


def waited_s(connect, *, num_waiting, came):
    """Seconds that count while they wait from 100 to 107, and those that count afterwards."""

    async def run():
        now = [100.0]
        upstream = Upstream(lambda: ("h", 1), connect=connect, clock=lambda: now[0])
        waiting = [asyncio.create_task(upstream.reached(lambda: True)) for _ in range(num_waiting)]
        await asyncio.sleep(0)
        now[0] = 107.0
        meanwhile = upstream.waited_s
        came.set()
        await asyncio.gather(*waiting)
        now[0] = 200.0
        return meanwhile, upstream.waited_s

    return asyncio.run(run())


def test_waiting_for_the_proxy_counts_once_however_many_wait():
    came = asyncio.Event()

    async def connect(host, port):
        if not came.is_set():
            raise ConnectionRefusedError
        return None, None

    assert (7.0, 7.0) == waited_s(connect, num_waiting=3, came=came)


def test_connecting_to_a_proxy_that_is_there_is_no_waiting():
    """However long it takes; who connects again and again would stretch his own deadlines."""
    came = asyncio.Event()

    async def connect(host, port):
        await came.wait()
        return None, None

    assert (0.0, 0.0) == waited_s(connect, num_waiting=3, came=came)


def test_only_plain_addresses_lead_through_a_relay():
    assert "http://127.0.0.1:7/exec/e?x=1" == through("http://host:80/exec/e?x=1", 7)
    with pytest.raises(SandboxError, match="expected an http:// address"):
        through("https://host/exec/e", 7)


def test_a_process_that_takes_too_long_to_enter_a_network_is_an_error_that_may_pass(monkeypatch):
    """Which another try of the launch may mend."""

    def refuse(namespace, port):
        raise PermissionError

    monkeypatch.setattr(netns_script, "bound_by_thread", refuse)
    monkeypatch.setattr(proxy_relay, "ENTER_S", 0.0)

    with pytest.raises(SandboxError, match="expected a socket within 0 s") as error:
        listen_inside(os.getpid(), 0)
    assert error.value.retryable
