"""What comes before any key is looked at: heads without end, silence, bytes that are no HTTP."""

import ast
import asyncio
import re
import socket
from contextlib import asynccontextmanager, suppress
from dataclasses import fields
from pathlib import Path

import pytest
from hypothesis import given
from tests.security.hostile import broken
from tests.security.inside import inside
from tests.waiting import PATIENCE_S
from uvicorn import Config
from uvicorn.server import ServerState

from gyre.cell.spec import CellSpec
from gyre.cli.main import main, parser
from gyre.config.sections import ProxyConfig
from gyre.net import http_server
from gyre.net.http_server import BoundedHttpProtocol, listener, serving

PACKAGE = Path(__file__).parents[2] / "src" / "gyre"
BLOCK = b"a" * 2**16
LINES = b"a: b\r\n" * 10_000
START = b"POST /v1/messages HTTP/1.1\r\nhost: x\r\n"
CHUNKED = START + b"transfer-encoding: chunked\r\n\r\n1\r\n{\r\n"
ENDLESS = {
    "a value": (START + b"x: ", BLOCK),
    "a name": (START, BLOCK),
    "a path": (b"GET /", BLOCK),
    "lines": (START, LINES),
    "lines behind a body": (CHUNKED + b"0\r\n", LINES),
    "words behind a chunk's size": (CHUNKED + b"1;", BLOCK),
}
SOON_S = 0.1
MOST_GROWTH_KB = 32 * 1024
MOST_BLOCKS = 800
WHOLE = START + b"content-length: 2\r\nauthorization: Bearer x\r\n\r\n{}"


def resident_kb(pid):
    return int(re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())[1])


@pytest.fixture(scope="module")
def proxy(staged):
    return staged.proxy(staged.engine())


@pytest.mark.slow
@pytest.mark.parametrize("what", ENDLESS)
def test_a_head_without_end_is_cut_off(what, proxy):
    """FAULTS 34: before anybody has shown a key, so that only the listener can refuse it."""
    first, block = ENDLESS[what]
    before = resident_kb(proxy.pid)
    with socket.create_connection(("127.0.0.1", proxy.port), timeout=PATIENCE_S) as connection:
        connection.sendall(first)
        with pytest.raises(ConnectionError):
            connection.sendall(block * MOST_BLOCKS)

    assert resident_kb(proxy.pid) - before < MOST_GROWTH_KB
    assert proxy.metrics()


@asynccontextmanager
async def listening(folder):
    """A proxy's application behind a real listener; gives its port."""
    on = listener("127.0.0.1", 0)
    async with inside(folder) as listeners, serving(listeners.application, on):
        yield on.getsockname()[1]


async def said(port, data, *, ends=True):
    """Everything that a listener says to these bytes until it hangs up."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(data)
    if ends:
        writer.write_eof()
    try:
        async with asyncio.timeout(PATIENCE_S):
            return await reader.read()
    except ConnectionResetError:
        return b""
    finally:
        await closed(writer)


async def closed(writer):
    """Whether or not the other side has hung up."""
    writer.close()
    with suppress(ConnectionError):
        await writer.wait_closed()


@pytest.mark.parametrize(
    "data",
    [b"", b"GET / HT", START, CHUNKED, b"POST /gyre/status HTTP/1.1\r\ncontent-length: 9\r\n\r\n{"],
    ids=["nothing", "half a line", "half a head", "half a body", "a refused body"],
)
def test_a_client_that_stops_in_the_middle_is_let_go(data, tmp_path, monkeypatch):
    """FAULTS 34: nobody holds a connection by sending nothing."""
    monkeypatch.setattr(http_server, "IDLE_S", SOON_S)

    async def scenario():
        async with listening(tmp_path) as port:
            await said(port, data, ends=False)
            # The next one may take its time.
            monkeypatch.setattr(http_server, "IDLE_S", PATIENCE_S)
            return await said(port, b"GET /health HTTP/1.0\r\n\r\n")

    assert asyncio.run(scenario()).endswith(b'{"ok":true}')


def test_a_client_that_goes_on_sending_what_was_refused_is_let_go(tmp_path, monkeypatch):
    async def scenario():
        async with listening(tmp_path) as port, asyncio.timeout(PATIENCE_S):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(START + b"content-length: 1000000\r\n\r\n")
            answer = await reader.readline()
            monkeypatch.setattr(http_server, "IDLE_S", SOON_S)
            hung_up = asyncio.create_task(reader.read())
            while not hung_up.done():
                writer.write(b"x")
                await asyncio.sleep(0.01)
            await closed(writer)
            return answer

    assert b"HTTP/1.1 401 Unauthorized\r\n" == asyncio.run(scenario())


def test_a_client_that_sent_all_of_what_was_refused_and_then_nothing_is_let_go(
    tmp_path, monkeypatch
):
    async def scenario():
        async with listening(tmp_path) as port, asyncio.timeout(PATIENCE_S):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(START + b"content-length: 2\r\n\r\n{")
            answer = await reader.readline()
            monkeypatch.setattr(http_server, "IDLE_S", SOON_S)
            writer.write(b"}")
            await reader.read()
            await closed(writer)
            return answer

    assert b"HTTP/1.1 401 Unauthorized\r\n" == asyncio.run(scenario())


def test_every_listener_is_reached_from_this_machine_alone_unless_told_otherwise():
    defaults = {
        ProxyConfig().host,
        parser().parse_args(["serve", "tiny"]).host,
        parser().parse_args(["proxy", "--model", "m", "--engine", "e"]).host,
        {one.name: one.default for one in fields(CellSpec)}["host"],
    }
    told = [
        f"{path}:{node.lineno}"
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and node.value == "0.0.0.0"
    ]

    assert ({"127.0.0.1"}, []) == (defaults, told)


def test_bytes_that_are_no_request_are_refused_and_the_next_request_is_answered(
    tmp_path_factory,
):
    with asyncio.Runner() as runner:
        entered = listening(tmp_path_factory.mktemp("raw"))
        port = runner.run(entered.__aenter__())

        @given(data=broken(WHOLE))
        def sent(data):
            answer = runner.run(said(port, data + b"\r\n\r\n"))
            statuses = re.findall(rb"HTTP/1\.1 (\d{3})", answer)
            assert all(400 <= int(status) < 500 for status in statuses), answer

        sent()
        health = runner.run(said(port, b"GET /health HTTP/1.0\r\n\r\n"))
        runner.run(entered.__aexit__(None, None, None))

    assert health.endswith(b'{"ok":true}')


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "example.org"])
def test_an_engine_without_a_key_serves_this_machine_alone(host, capsys):
    """Whoever reaches an engine can change its weights."""
    assert 2 == main(["serve", "tiny", "--host", host, "--port", "0"])
    assert "others could change the weights" in capsys.readouterr().err


def test_a_connection_holds_no_byte_back_that_a_further_write_does_not_wait_for():
    """SPEC 4.5: a reply counts as delivered when the kernel has all of it."""

    async def run():
        made = []

        def connection():
            made.append(BoundedHttpProtocol(Config(app=None, lifespan="off"), ServerState(), {}))
            return made[0]

        loop = asyncio.get_running_loop()
        server = await loop.create_server(connection, "127.0.0.1", 0)
        async with server:
            _, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            while not made or made[0].transport is None:
                await asyncio.sleep(0)
            found = made[0].transport.get_write_buffer_limits()
            made[0].transport.abort()
            writer.transport.abort()
            await asyncio.sleep(0)
        return found

    assert (0, 0) == asyncio.run(run())
