"""A program behind a door is a child in all but name: it hears, speaks, and ends with it."""

import asyncio
import subprocess
import sys
from contextlib import asynccontextmanager

import pytest
from tests.contracts.cluster import ECHO, is_alive, until
from tests.waiting import PATIENCE_S

from gyre.cluster import node_agent
from gyre.cluster.node_agent import NodeAgentServer, interface_of
from gyre.types.errors import ConfigError

HOST = "127.0.0.2"
ENVIRON = "import os; print(os.environ['GLOO_SOCKET_IFNAME'])"
SAYS_PID = "import os, sys; print(os.getpid(), flush=True); sys.stdin.read()"
DEAF = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _patient(monkeypatch):
    """A client may be slow to ask, and a program that hears nothing more slow to end."""
    monkeypatch.setattr(node_agent, "ASK_S", PATIENCE_S)
    monkeypatch.setattr(node_agent, "END_S", PATIENCE_S)


class Far:
    """A door on another address, and programs that are started through it."""

    def __init__(self, folder, port):
        self._folder = folder
        self.port = port

    @asynccontextmanager
    async def started(self, code, *, key="key"):
        with (self._folder / "log").open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "gyre.cluster.node_agent", f"{HOST}:{self.port}"),
                *(str(self._folder / key), "-c", code),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
            )
        try:
            yield process
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()


def with_door(work, folder):
    async def live():
        (folder / "key").write_text("the run's token\n")
        (folder / "other").write_text("another\n")
        door = await NodeAgentServer.open(HOST, folder / "key")
        try:
            async with asyncio.timeout(PATIENCE_S):
                return await work(Far(folder, door.port))
        finally:
            await door.close()

    return asyncio.run(live())


def test_what_it_hears_and_says_passes_through_and_its_errors_are_logged(tmp_path):
    async def work(far):
        code = f"import sys; sys.stderr.write('an error')\n{ECHO}"
        async with far.started(code) as process:
            said, _ = await process.communicate(b"x\ny\n")
        async with far.started(ENVIRON) as process:
            interface, _ = await process.communicate(b"")
        return said, interface

    said, interface = with_door(work, tmp_path)

    assert b"heard x\nheard y\nover\n" == said
    assert b"lo\n" == interface
    assert "an error" == (tmp_path / "log").read_text()


def test_whoever_shows_another_key_has_nothing_started(tmp_path):
    async def work(far):
        async with far.started(f"open({str(tmp_path / 'it')!r}, 'w')", key="other") as process:
            return await process.communicate(b"")

    assert (b"", None) == with_door(work, tmp_path)
    assert not (tmp_path / "it").exists()


@pytest.mark.parametrize("said", [b"", b"7\n", b"{}\n", b"no JSON\n"])
def test_whoever_says_nothing_of_use_is_sent_away_and_the_door_stays_open(tmp_path, said):
    async def work(far):
        reader, writer = await asyncio.open_connection(HOST, far.port)
        writer.write(said)
        writer.write_eof()
        answer = await reader.read()
        writer.close()
        async with far.started("print('here')") as process:
            return answer, (await process.communicate(b""))[0]

    assert (b"", b"here\n") == with_door(work, tmp_path)


def test_why_nothing_can_be_started_stands_in_the_log(tmp_path):
    """Of an address that is not this machine's no interface is known."""

    async def work():
        (tmp_path / "key").write_text("the run's token")
        door = await NodeAgentServer.open("0.0.0.0", tmp_path / "key")
        async with (
            asyncio.timeout(PATIENCE_S),
            Far(tmp_path, door.port).started("print('here')") as process,
        ):
            said, _ = await process.communicate(b"")
            await door.close()
        return said

    assert b"" == asyncio.run(work())
    expected = "gyre far: 0.0.0.0: no network interface of this machine has the address 0.0.0.0\n"
    assert expected == (tmp_path / "log").read_text()


@pytest.mark.parametrize("code", [SAYS_PID, DEAF], ids=["that listens", "that does not listen"])
def test_a_program_whose_driver_is_killed_ends(tmp_path, monkeypatch, code):
    if code is DEAF:
        monkeypatch.setattr(node_agent, "END_S", 0.1)

    async def work(far):
        async with far.started(code) as process:
            pid = int(await process.stdout.readline())
            assert is_alive(pid)
        await until(lambda: not is_alive(pid))

    with_door(work, tmp_path)


def test_a_driver_hears_of_the_end_of_a_program(tmp_path):
    async def work(far):
        async with far.started("print('last words')") as process:
            said = await process.stdout.read()
            return said, await process.wait()

    assert (b"last words\n", 0) == with_door(work, tmp_path)


def test_an_interface_is_known_by_its_address():
    assert "lo" == interface_of(HOST)
    with pytest.raises(ConfigError, match=r"no network interface .* 192\.0\.2\.1"):
        interface_of("192.0.2.1")
