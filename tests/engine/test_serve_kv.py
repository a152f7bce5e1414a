"""Cached blocks over HTTP: pinned, carried to another engine, and released."""

import asyncio

import pytest
import torch
from safetensors.torch import load, save
from tests.engine import serving, slow_engine

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
