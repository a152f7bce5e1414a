"""A cell as its controller sees it: orders end, by an answer or because the cell is gone."""

import asyncio
from pathlib import Path

import aiohttp
import pytest

from gyre.cell import client
from gyre.cell.client import CellClient
from gyre.cluster import liveness
from gyre.types.errors import CellGone


def asked(order, *, answers=asyncio.Event):
    """What an order comes to at a cell that takes it and says nothing until the event."""

    async def live():
        go = answers()

        async def silent(reader, writer):
            await reader.readuntil(b"\r\n\r\n")
            await go.wait()
            body = b'{"digest": "d", "seconds": 1.0, "num_bytes": 2}'
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
            await writer.drain()
            writer.close()

        server = await asyncio.start_server(silent, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with aiohttp.ClientSession() as session:
            try:
                return await order(CellClient(3, url, session, order_s=0.1), go)
            finally:
                go.set()
                server.close()

    return asyncio.run(live())


@pytest.mark.parametrize(
    "order",
    [
        lambda cell, _: cell.train(b"", lease=0, num_executions=1, scores=None),
        lambda cell, _: cell.enter(),
        lambda cell, _: cell.step(0),
    ],
)
def test_a_cell_that_never_ends_an_order_is_gone(order):
    """Though its process lives and says that it is well."""
    with pytest.raises(CellGone, match="cell 3"):
        asked(order)


@pytest.mark.parametrize(
    "order",
    [
        lambda cell, _: cell.save(Path("v")),
        lambda cell, _: cell.checkpoint(Path("v")),
        lambda cell, _: cell.context_tokens(),
    ],
)
def test_a_cell_that_hangs_while_it_is_waited_for_is_gone(order, monkeypatch):
    """FAULTS I10: not only what it was ordered takes long, it says nothing at all."""
    monkeypatch.setattr(client, "HEALTH_S", 0.01)
    for name in ("BEAT_S", "SILENT_S"):
        monkeypatch.setattr(liveness, name, 0.01)

    with pytest.raises(CellGone, match="cell 3"):
        asked(order)


def test_what_a_disk_holds_up_is_waited_for():
    async def order(cell, go):
        saving = asyncio.create_task(cell.save(Path("v")))
        done, _ = await asyncio.wait((saving,), timeout=0.3)
        assert not done
        go.set()
        return await saving

    assert "d" == asked(order).digest
