"""Cached blocks over HTTP: pinned, carried to another engine, and released."""

import asyncio
from threading import Barrier, Lock

import pytest
import torch
from safetensors.torch import load, save
from tests.inference.support import serving, slow_engine
from tests.waiting import PATIENCE_S, until

from gyre.inference.engine.kv_cache import KvCache
from gyre.inference.server.control_api import COPIES
from gyre.types.errors import OutOfMemory

PROMPT = list(range(1, 30))
ASKED = {"input_ids": PROMPT, "rid": "r", "sampling_params": {"sampling_seed": 5}}


def test_an_export_continues_in_another_engine_as_if_it_had_been_there():
    async def scenario():
        network = slow_engine.network()
        async with serving.served(network) as one, serving.served(network) as two:
            here = await one.post("/generate", ASKED)
            pin = await one.post("/kv/pin", {"input_ids": PROMPT})
            exported = await one.post("/kv/export", {"pin": pin.json["pin"]})
            imported = await two.post("/kv/import", exported.body)
            again = await two.post("/kv/pin", {"input_ids": PROMPT})
            there = await two.post("/generate", ASKED)
            return here, pin, exported, imported, again, there

    here, pin, exported, imported, again, there = asyncio.run(scenario())
    tensors = load(exported.body)

    assert {28} == {one.json["tokens"] for one in (pin, imported, again)}
    assert "application/octet-stream" == exported.kind
    assert PROMPT[:28] == tensors["token_ids"].tolist()
    assert (2, 2, 2, 28, 8) == tuple(tensors["values"].shape)
    assert here.json["output_ids"] == there.json["output_ids"]


def test_a_request_that_runs_can_be_pinned():
    async def scenario():
        async with serving.served() as client:
            await client.post("/pause_generation")
            held = asyncio.create_task(client.post("/generate", ASKED))
            while (await client.get("/server_info")).json["num_queue_reqs"] == 0:
                pass
            pinned = await client.post("/kv/pin", {"rid": "r"})
            empty = await client.post("/kv/export", {"pin": pinned.json["pin"]})
            await client.post("/continue_generation")
            await held
            return pinned, empty, await client.post("/kv/pin", {"rid": "r"})

    pinned, empty, over = asyncio.run(scenario())

    assert (200, 0) == (pinned.status, pinned.json["tokens"])
    assert [] == load(empty.body)["token_ids"].tolist()
    assert (503, True) == (over.status, "over or unknown" in over.json["error"]["message"])


def test_a_pin_holds_blocks_until_it_is_released():
    async def scenario():
        async with serving.served() as client:
            free = []

            async def note():
                free.append((await client.engine.capacity()).available_blocks)

            await client.post("/generate", ASKED)
            await note()
            pin = (await client.post("/kv/pin", {"input_ids": PROMPT})).json["pin"]
            await note()
            first = await client.post("/kv/release", {"pin": pin})
            await note()
            return free, first, await client.post("/kv/release", {"pin": pin})

    (before, held, after), first, second = asyncio.run(scenario())

    assert (before, before - 7, before) == (before, held, after)
    assert (200, 404) == (first.status, second.status)


def test_a_rest_loses_every_pin():
    async def scenario():
        async with serving.served() as client:
            await client.post("/generate", ASKED)
            pin = await client.post("/kv/pin", {"input_ids": PROMPT})
            await client.post("/release_memory_occupation", {"tags": ["kv_cache"]})
            await client.post("/resume_memory_occupation")
            return await client.post("/kv/export", {"pin": pin.json["pin"]})

    lost = asyncio.run(scenario())

    assert (404, "pin") == (lost.status, lost.json["error"]["param"])


async def free(client):
    return (await client.engine.capacity()).available_blocks


@pytest.mark.parametrize("path", ["/kv/pin", "/kv/take", "/kv/import"])
def test_a_pin_whose_asker_left_is_held_for_nobody(path, tmp_path):
    async def scenario():
        network = slow_engine.network()
        gone = asyncio.Event()
        gone.set()
        async with (
            serving.served(network, share=tmp_path) as one,
            serving.served(network, share=tmp_path) as two,
        ):
            await one.post("/generate", ASKED)
            pin = (await one.post("/kv/pin", {"input_ids": PROMPT})).json["pin"]
            exported = await one.post("/kv/export", {"pin": pin})
            await one.post("/kv/put", {"pin": pin, "to": "call-1"})
            if path == "/kv/pin":
                await one.post("/kv/release", {"pin": pin})
            put = {"/kv/pin": {"input_ids": PROMPT}, "/kv/take": {"from": "call-1"}}
            client = one if path == "/kv/pin" else two
            before = await free(client)
            body = put.get(path, exported.body)
            answered = await client.post(path, body, hang_up=gone)
            return answered, before, await free(client)

    answered, before, after = asyncio.run(scenario())

    assert (None, before) == (answered.status, after)


def test_a_pin_that_nobody_lets_go_of_ends_with_its_time():
    async def scenario():
        async with serving.served(pin_s=0.1) as client:
            await client.post("/generate", ASKED)
            before = await free(client)
            pin = (await client.post("/kv/pin", {"input_ids": PROMPT})).json["pin"]

            async def is_over():
                return await free(client) == before

            await until(is_over, "its blocks are free")
            return await client.post("/kv/release", {"pin": pin})

    assert 404 == asyncio.run(scenario()).status


class Counted:
    """A shelf at which as many wait for each other as may be there; the most that were."""

    def __init__(self):
        self.now = self.most = 0
        self._lock = Lock()
        self._all_here = Barrier(COPIES)

    def put(self, blocks, name):
        with self._lock:
            self.now += 1
            self.most = max(self.most, self.now)
        self._all_here.wait(PATIENCE_S)
        with self._lock:
            self.now -= 1
        return name, 1

    def drop(self, name):
        pass


def test_few_copies_of_blocks_are_made_at_once():
    async def scenario():
        async with serving.served(kv_store=kv_store) as client:
            await client.post("/generate", ASKED)
            pins = [await client.post("/kv/pin", {"input_ids": PROMPT}) for _ in range(5 * COPIES)]
            puts = [{"pin": one.json["pin"], "to": f"call-{one.json['pin']}"} for one in pins]
            return await asyncio.gather(*(client.post("/kv/put", one) for one in puts))

    kv_store = Counted()
    answers = asyncio.run(scenario())

    assert [200] * 5 * COPIES == [one.status for one in answers]
    assert COPIES == kv_store.most


def test_blocks_that_there_is_no_room_to_copy_stay_where_they_are(monkeypatch, tmp_path):
    """The call computes its prompt elsewhere, and the engine goes on."""

    def read(store, blocks):
        raise OutOfMemory("a copy of 7 blocks: no room")

    async def scenario():
        async with serving.served(share=tmp_path) as client:
            await client.post("/generate", ASKED)
            pin = (await client.post("/kv/pin", {"input_ids": PROMPT})).json["pin"]
            monkeypatch.setattr(KvCache, "read", read)
            refused = await client.post("/kv/put", {"pin": pin, "to": "call-1"})
            released = await client.post("/kv/release", {"pin": pin})
            return refused, released, await client.post("/generate", ASKED)

    refused, released, after = asyncio.run(scenario())

    assert (503, 200, 200) == (refused.status, released.status, after.status)
    assert "no room" in refused.json["error"]["message"]


def blocks(**changes):
    whole = {
        "token_ids": torch.arange(8, dtype=torch.int32),
        "version": torch.tensor([0]),
        "values": torch.zeros(2, 2, 2, 8, 8),
    }
    return save({name: one for name, one in (whole | changes).items() if one is not None})


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        (b"", 400, "expected the bytes of an export"),
        (b"\xff" * 100, 400, "expected the bytes of an export"),
        (blocks()[:-1], 400, "expected the bytes of an export"),
        (blocks(values=None), 400, "expected the tensors"),
        (blocks(token_ids=torch.arange(8)), 400, "token_ids: expected int32"),
        (blocks(version=torch.tensor([0, 1])), 400, "version: expected one int64"),
        (blocks(version=torch.tensor([0.0])), 400, "version: expected one int64"),
        (blocks(values=torch.full((2, 2, 2, 8, 8), torch.nan)), 400, "values: expected finite"),
        (blocks(values=torch.zeros(2, 2, 2, 8, 8, dtype=torch.int32)), 400, "values: expected"),
        (blocks(values=torch.zeros(3, 2, 2, 8, 8)), 400, "blocks: expected shape"),
        (blocks(values=torch.zeros(2, 2)), 400, "blocks: expected shape"),
        (blocks(version=torch.tensor([4])), 503, "blocks of weights 4: these are weights 0"),
    ],
)
def test_what_is_no_export_of_such_an_engine_is_refused(body, status, said):
    async def scenario():
        async with serving.served() as client:
            refused = await client.post("/kv/import", body)
            return refused, await client.engine.capacity()

    refused, capacity = asyncio.run(scenario())

    assert status == refused.status
    assert said in refused.json["error"]["message"]
    assert capacity.blocks == capacity.available_blocks


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/kv/pin", {}, 400),
        ("/kv/pin", {"rid": "r", "input_ids": [1]}, 400),
        ("/kv/pin", {"ids": [1]}, 400),
        ("/kv/export", {"pin": "1"}, 400),
        ("/kv/export", {"pin": 1}, 404),
        ("/kv/release", {}, 400),
    ],
)
def test_an_order_about_pins_that_makes_no_sense_is_refused(path, body, status):
    async def scenario():
        async with serving.served() as client:
            return await client.post(path, body)

    assert status == asyncio.run(scenario()).status


def test_blocks_go_from_engine_to_engine_through_a_shared_folder(tmp_path):
    async def scenario():
        network = slow_engine.network()
        async with (
            serving.served(network, share=tmp_path) as one,
            serving.served(network, share=tmp_path) as two,
        ):
            here = await one.post("/generate", ASKED)
            pin = await one.post("/kv/pin", {"input_ids": PROMPT})
            put = await one.post("/kv/put", {"pin": pin.json["pin"], "to": "call-1"})
            lies = [path.name for path in tmp_path.iterdir()]
            taken = await two.post("/kv/take", {"from": "call-1"})
            again = await two.post("/kv/take", {"from": "call-1"})
            there = await two.post("/generate", ASKED)
            return here, put, lies, taken, again, there

    here, put, lies, taken, again, there = asyncio.run(scenario())

    assert (28, ["call-1.kv"]) == (put.json["tokens"], lies)
    assert put.json["bytes"] > 2 * 2 * 2 * 28 * 8 * 4
    assert (200, 28) == (taken.status, taken.json["tokens"])
    assert (404, []) == (again.status, list(tmp_path.iterdir()))
    assert here.json["output_ids"] == there.json["output_ids"]


@pytest.mark.parametrize(
    ("path", "body", "status", "says"),
    [
        ("/kv/put", {"pin": 1, "to": "../x"}, 400, "letters, digits"),
        ("/kv/put", {"pin": 1, "to": ""}, 400, "letters, digits"),
        ("/kv/put", {"pin": 7, "to": "x"}, 404, "a pin that is held"),
        ("/kv/take", {"from": "/etc/passwd"}, 400, "letters, digits"),
        ("/kv/take", {"from": "x"}, 404, "no cached blocks named x.kv"),
        ("/kv/take", {"from": "broken"}, 400, "expected cached blocks"),
        ("/kv/take", {}, 400, "from"),
    ],
)
def test_a_bad_hand_over_is_refused_by_name(tmp_path, path, body, status, says):
    async def scenario():
        (tmp_path / "broken.kv").write_bytes(b"no tensors")
        async with serving.served(share=tmp_path) as client:
            return await client.post(path, body), await client.post("/generate", ASKED)

    refused, after = asyncio.run(scenario())

    assert (status, 200) == (refused.status, after.status)
    assert says in refused.json["error"]["message"]


def test_a_server_without_a_shared_folder_says_so():
    async def scenario():
        async with serving.served() as client:
            return await client.post("/kv/take", {"from": "x"})

    refused = asyncio.run(scenario())

    assert 404 == refused.status
    assert "--share" in refused.json["error"]["message"]
