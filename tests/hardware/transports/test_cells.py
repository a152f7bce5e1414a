"""Real cells give each other weights and cached blocks over every transport."""

import asyncio
import json
from dataclasses import replace

import aiohttp
import pytest
from tests.cell.support.live_cells import KEY, Batch, join, started, weights
from tests.controller.support.forked_cells import fork_clients
from tests.waiting import PATIENCE_S

from gyre.config.sections import TransportConfig
from gyre.types.errors import CellError, ExposureGone, TransferError

pytestmark = pytest.mark.slow
KINDS = ["tcp", pytest.param("mooncake", marks=pytest.mark.transports)]
PROMPT = list(range(3, 40))
cells_are_forked = fork_clients("gyre.cell.main")


@pytest.fixture(scope="module", params=KINDS)
def kind(request):
    return request.param


@pytest.fixture(scope="module")
def batch(tmp_path_factory):
    return Batch(tmp_path_factory.mktemp("model") / "model")


@pytest.fixture(scope="module")
def cells(kind, tmp_path_factory, batch):
    """A core and two satellites, which share no weights through any folder."""
    folder = tmp_path_factory.mktemp("cells")
    section = TransportConfig(kind=kind, timeout_s=PATIENCE_S)
    with started(folder, batch.model, 0, 1, 2, transport=section) as made:
        yield made


def test_a_satellite_has_the_cores_weights_bit_for_bit(cells, batch, tmp_path):
    async def scenario(clients):
        await join(clients, 0)
        await clients[0].step(0)
        await join(clients, 1, 2)
        digests = [(await weights(clients[at], tmp_path / f"{at}"))[0] for at in range(3)]
        versions = [(await clients[at].health()).trainer_version for at in range(3)]
        return digests, versions

    digests, versions = cells.run(scenario)

    assert 1 == len(set(digests))
    assert [1, 1, 1] == versions


def test_what_the_core_held_before_it_stepped_is_outdated(cells):
    async def scenario(clients):
        await join(clients, 0, 1)
        version = (await clients[0].health()).trainer_version
        before = await clients[0].expose()
        await clients[0].step(version)
        now = await clients[0].expose()
        with pytest.raises(ExposureGone):
            await clients[1].pull(before)
        unchanged = (await clients[1].health()).trainer_version
        await clients[1].pull(now)
        return version, unchanged, (await clients[1].health()).trainer_version

    version, unchanged, after = cells.run(scenario)

    assert (version, version + 1) == (unchanged, after)


def test_an_engine_loads_from_the_cores_memory_what_it_can_see_in_no_folder(cells, tmp_path):
    async def scenario(clients):
        digest, _ = await weights(clients[0], tmp_path / "saved")
        given = await clients[0].offer(tmp_path / "saved", version=9)
        nowhere = tmp_path / "nowhere"
        with pytest.raises(CellError, match="expected weights with digest"):
            await clients[2].load(nowhere, version=9, digest="0" * 32, given=given)
        loaded = await clients[2].load(nowhere, version=9, digest=digest, given=given)
        return digest, loaded.digest, (await clients[2].health()).engine_version

    digest, loaded, version = cells.run(scenario)

    assert (digest, 9) == (loaded, version)


async def posted(session, url, path, body):
    async with session.post(f"{url}{path}", json=body) as answer:
        return answer.status, json.loads(await answer.read())


def test_cached_blocks_follow_a_call_and_go_with_their_pin(cells):
    async def scenario(_):
        headers = {"Authorization": f"Bearer {KEY}"}
        async with aiohttp.ClientSession(headers=headers) as session:

            async def on(cell, path, **body):
                return await posted(session, cells.urls[cell], path, body)

            sampling = {"temperature": 0.0, "max_new_tokens": 8}
            ask = {"input_ids": PROMPT, "sampling_params": sampling}
            _, here = await on(0, "/generate", **ask)
            _, pin = await on(0, "/kv/pin", input_ids=PROMPT)
            _, put = await on(0, "/kv/put", pin=pin["pin"], to="call-1")
            _, before = await on(1, "/kv/pin", input_ids=PROMPT)
            status, taken = await on(1, "/kv/take", **{"from": put["from"]})
            _, after = await on(1, "/kv/pin", input_ids=PROMPT)
            _, there = await on(1, "/generate", **ask)
            await on(0, "/kv/release", pin=pin["pin"])
            gone, _ = await on(1, "/kv/take", **{"from": put["from"]})
            wrong, _ = await on(1, "/kv/take", **{"from": "call-1"})
            tokens = [one["tokens"] for one in (pin, put, taken, after)]
            return here, tokens, before["tokens"], there, (status, gone, wrong)

    here, tokens, before, there, statuses = cells.run(scenario)

    assert (0, [32] * 4) == (before, tokens)
    assert here["output_ids"] == there["output_ids"]
    assert (200, 404, 400) == statuses


def test_a_core_that_is_gone_is_an_error_and_changes_nothing(kind, batch, tmp_path):
    section = TransportConfig(kind=kind, timeout_s=PATIENCE_S)

    async def scenario(made):
        async with made.clients() as clients:
            await join(clients, 0, 1)
            before, _ = await weights(clients[1], tmp_path / "before")
            exposed = await clients[0].expose()
            made.processes[0].kill()
            await asyncio.to_thread(made.processes[0].wait)
            with pytest.raises(TransferError):
                await clients[1].pull(exposed)
            with pytest.raises(TransferError):
                await clients[1].pull(replace(exposed, parts=()))
            after, _ = await weights(clients[1], tmp_path / "after")
            return before, after

    with started(tmp_path, batch.model, 0, 1, transport=section) as made:
        before, after = asyncio.run(scenario(made))

    assert before == after
