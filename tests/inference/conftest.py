"""Loopback servers that answer exactly what a test tells them to."""

import socket
from contextlib import asynccontextmanager

import pytest
from aiohttp import web


@pytest.fixture
def unused_port():
    """A port nobody listens on, and nobody can, because it is held."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


@pytest.fixture
def serving():
    """A context manager that serves one handler and gives its address."""

    @asynccontextmanager
    async def serve(handler):
        runner = web.ServerRunner(web.Server(handler))
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        try:
            yield f"http://127.0.0.1:{runner.addresses[0][1]}"
        finally:
            await runner.cleanup()

    return serve
