"""Engine addresses as they are written on a command line."""

import asyncio

import pytest
from aiohttp import web

from gyre.inference.clients.http import client
from gyre.inference.clients.registry import connect, read_address
from gyre.types.errors import ConfigError, EngineError


@pytest.mark.parametrize(
    ("text", "kind", "url", "name"),
    [
        ("sglang=http://a:1", "sglang", "http://a:1", "a:1"),
        ("vllm=https://b.example:2/", "vllm", "https://b.example:2", "b.example:2"),
        ("http://127.0.0.1:30000", None, "http://127.0.0.1:30000", "127.0.0.1:30000"),
    ],
)
def test_an_address_says_where_and_perhaps_what(text, kind, url, name):
    address = read_address(text)

    assert (kind, url, name) == (address.kind, address.url, address.name)


@pytest.mark.parametrize(
    "text",
    ["", "a:1", "tgi=http://a:1", "ftp://a:1", "http://", "http://u:p@a:1", "http://a:1/?x=1"],
)
def test_anything_else_is_refused_with_what_was_expected(text):
    with pytest.raises(ConfigError, match="engine"):
        read_address(text)


def test_a_server_that_is_no_engine_is_named(serving):
    async def nothing_here(request):
        return web.Response(status=404)

    async def ask():
        async with serving(nothing_here) as url, client() as session:
            await connect(read_address(url), session)

    with pytest.raises(ConfigError, match="neither SGLang"):
        asyncio.run(ask())


def test_nobody_at_the_address_is_an_engine_error_that_may_pass(unused_port):
    async def ask():
        async with client() as session:
            await connect(read_address(f"http://127.0.0.1:{unused_port}"), session)

    with pytest.raises(EngineError) as error:
        asyncio.run(ask())

    assert error.value.retryable
    assert isinstance(error.value.__cause__, ConnectionRefusedError)
