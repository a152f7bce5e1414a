"""The network between simulated processes: requests that are late, lost, answered twice or never.

Rule 1: a lost request or answer is seen as a connection that broke, as TCP would show it.
Rule 2: whoever dies breaks all connections that it has; whoever is stopped breaks none.
"""

import asyncio
import json
from urllib.parse import urlsplit

import aiohttp
from tests.chaos_sim.loop import NODE

NOTICE_S = 0.002
"""How long a broken connection takes to be noticed."""


class Network:
    """Addresses, who answers there, and what is wrong with the ways between them."""

    def __init__(self, loop, rng):
        self._loop = loop
        self._rng = rng
        self._hosts = {}
        self._ports = 20_000
        self._cuts = {}
        """By pair of places: until when nothing passes between them."""
        self._slow = {}
        """By place: until when its messages take long, and how long."""
        self._loss = (0.0, 0.0)
        """Until when messages are lost, and how many of them."""

    def port(self):
        self._ports += 1
        return self._ports

    def listen(self, netloc, node, app):
        self._hosts[netloc] = node, app
        node.at_death.append(lambda: self._leave(netloc, node))

    def _leave(self, netloc, node):
        if self._hosts.get(netloc, (None, None))[0] is node:
            del self._hosts[netloc]

    def session(self, headers=None):
        return Session(self, NODE.get(), headers or {})

    def cut(self, one, other, lasts_s):
        """Nothing passes between two processes, or those that take their place."""
        places = frozenset((_place(one.name), _place(other.name)))
        self._cuts[places] = self._loop.time() + lasts_s

    def slow_down(self, node, lasts_s, mean_s):
        self._slow[_place(node.name)] = self._loop.time() + lasts_s, mean_s

    def lose(self, share, lasts_s):
        self._loss = self._loop.time() + lasts_s, share

    def is_cut(self, one, other):
        until = self._cuts.get(frozenset((_place(one.name), _place(other.name))), 0.0)
        return self._loop.time() < until

    def delay_s(self, *nodes):
        found = 0.0002 + self._rng.expovariate(1 / 0.001)
        for node in nodes:
            until, mean_s = self._slow.get(_place(node.name), (0.0, 0.0))
            if self._loop.time() < until:
                found += self._rng.expovariate(1 / mean_s)
        return found

    def loses(self):
        until, share = self._loss
        return self._loop.time() < until and self._rng.random() < share

    async def reach(self, client, netloc):
        """Whoever answers there, after the way to it; ClientConnectionError if nobody does."""
        await asyncio.sleep(self.delay_s(client))
        node, app = self._hosts.get(netloc, (None, None))
        if node is None:
            raise aiohttp.ClientConnectionError(f"{netloc}: refused") from ConnectionRefusedError()
        if self.is_cut(client, node):
            # Nothing says that it is: the connection is tried until sock_connect is over.
            await asyncio.sleep(5.0)
            raise aiohttp.ClientConnectionError(f"{netloc}: no way there")
        return node, app

    async def ask(self, client, method, url, headers, body):
        """Status and body that come back."""
        where = urlsplit(url)
        node, app = await self.reach(client, where.netloc)
        if self.loses():
            await asyncio.sleep(NOTICE_S)
            raise aiohttp.ServerDisconnectedError
        await asyncio.sleep(self.delay_s(node))
        asked = Asked(self._loop, client, node, method, where.path, headers, body)
        if node.is_dead:
            raise aiohttp.ServerDisconnectedError
        self._loop.create_task(asked.serve(app), context=node.context())
        try:
            status, found = await asked.answered
        finally:
            asked.leave()
        if self.loses() or self.is_cut(client, node):
            await asyncio.sleep(NOTICE_S)
            raise aiohttp.ServerDisconnectedError
        await asyncio.sleep(self.delay_s(client, node))
        return status, found


class Asked:
    """One request at the one who answers it, in the shape of ASGI."""

    def __init__(self, loop, client, node, method, path, headers, body):
        self._loop = loop
        self._node = node
        self._client = client
        self.answered = loop.create_future()
        self._gone = loop.create_future()
        self._scope = {
            "type": "http",
            "method": method,
            "path": path,
            "headers": [(k.lower().encode(), str(v).encode()) for k, v in headers.items()],
        }
        self._body = body
        self._is_read = False
        self._status = None
        self._said = []
        node.at_death.append(self._broken)
        client.at_death.append(self.leave)

    async def serve(self, app):
        try:
            await app(self._scope, self._receive, self._send)
        finally:
            self._broken()

    def leave(self):
        """The client has what it wanted, or wants it no more."""
        if not self._gone.done():
            self._gone.set_result(None)
        for node, one in ((self._node, self._broken), (self._client, self.leave)):
            if one in node.at_death:
                node.at_death.remove(one)

    def _broken(self):
        if not self.answered.done():
            self.answered.set_exception(aiohttp.ServerDisconnectedError())
            self.answered.exception()

    async def _receive(self):
        if not self._is_read:
            self._is_read = True
            return {"type": "http.request", "body": self._body, "more_body": False}
        await asyncio.shield(self._gone)
        return {"type": "http.disconnect"}

    async def _send(self, message):
        if message["type"] == "http.response.start":
            self._status = message["status"]
            return
        self._said.append(message.get("body", b""))
        if not message.get("more_body", False) and not self.answered.done():
            self.answered.set_result((self._status, b"".join(self._said)))


class Session:
    """What a client of `aiohttp` is to those that ask over it."""

    def __init__(self, network, node, headers):
        self._network = network
        self._node = node
        self.headers = dict(headers)

    async def __aenter__(self):
        return self

    async def __aexit__(self, *error):
        pass

    async def close(self):
        pass

    def get(self, url, **more):
        return self.request("GET", url, **more)

    def post(self, url, **more):
        return self.request("POST", url, **more)

    def request(self, method, url, *, data=b"", json=None, headers=None, **more):
        return _Request(self._network, self._node, method, url, self.headers, headers, data, json)


class _Request:
    def __init__(self, network, node, method, url, always, headers, data, plain):
        self._network = network
        self._node = node
        self._method, self._url = method, url
        self._headers = {**always, **(headers or {})}
        self._data = data if plain is None else json.dumps(plain).encode()

    async def __aenter__(self):
        found = await self._network.ask(
            self._node, self._method, self._url, self._headers, self._data or b""
        )
        return _Answer(*found)

    async def __aexit__(self, *error):
        pass


class _Answer:
    def __init__(self, status, body):
        self.status = status
        self._body = body

    async def read(self):
        return self._body

    async def json(self, **more):
        return json.loads(self._body)


class Http:
    """Stands where modules have `aiohttp`, with sessions of this network."""

    def __init__(self, network):
        self._network = network
        for name in ("ClientError", "ClientConnectionError", "ServerDisconnectedError"):
            setattr(self, name, getattr(aiohttp, name))

    def ClientSession(self, *, headers=None, **more):
        return self._network.session(headers)

    def ClientTimeout(self, **more):
        return None

    def TCPConnector(self, **more):
        return None


def _place(name):
    """Supervisors and agents share a place."""
    return name.split("/")[-1]
