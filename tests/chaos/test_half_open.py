"""Clients that are gone without a word: whoever serves them notices, and is free again."""

import asyncio
import socket

from tests.waiting import PATIENCE_S

from gyre.net.http_server import GONE_S, listener, serving

GONE_SOON_S = 1.0


class Reply:
    """An application with more to say than any buffer holds, and how its request ended."""

    def __init__(self):
        self.begun = asyncio.Event()
        self.heard = asyncio.Event()
        self.was_whole = False

    async def __call__(self, scope, receive, send):
        await receive()
        gone = asyncio.create_task(self._gone(receive))
        await send({"type": "http.response.start", "status": 200, "headers": []})
        self.begun.set()
        for _ in range(4096):
            await send({"type": "http.response.body", "body": b" " * 2**16, "more_body": True})
            if gone.done():
                return
        self.was_whole = True
        gone.cancel()

    async def _gone(self, receive):
        while (await receive())["type"] != "http.disconnect":
            pass
        self.heard.set()


def test_a_client_that_takes_nothing_is_gone_after_a_while():
    """FAULTS 10: its connection stays open and its kernel answers, but nobody reads."""

    async def scenario():
        app = Reply()
        on = listener("127.0.0.1", 0, send_bytes=2**16, gone_s=GONE_SOON_S)
        client = socket.socket()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(on.getsockname())
        client.sendall(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        async with asyncio.timeout(PATIENCE_S), serving(app, on):
            await app.begun.wait()
            await app.heard.wait()
        client.close()
        return app

    assert not asyncio.run(scenario()).was_whole


def test_connections_inherit_when_a_silent_client_is_gone():
    """FAULTS 10: without a FIN only the kernel's own probes tell; a minute at most."""
    on = listener("127.0.0.1", 0)
    client = socket.create_connection(on.getsockname())
    met, _ = on.accept()
    asked = {
        name: met.getsockopt(socket.IPPROTO_TCP, getattr(socket, name))
        for name in ("TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_KEEPCNT", "TCP_USER_TIMEOUT")
    }
    probed = met.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    for one in (on, client, met):
        one.close()

    assert 1 == probed
    assert asked["TCP_KEEPIDLE"] + asked["TCP_KEEPCNT"] * asked["TCP_KEEPINTVL"] <= 1.01 * GONE_S
    assert 1000 * GONE_S == asked["TCP_USER_TIMEOUT"]
