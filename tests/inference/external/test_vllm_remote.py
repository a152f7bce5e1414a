"""vLLM's orders: what it is told around weights, and which version tokens have meanwhile."""

import asyncio
import json
from array import array
from pathlib import Path

import pytest
import torch
from aiohttp import web
from safetensors.torch import load_file
from tests.waiting import PATIENCE_S

from gyre.inference.clients.http import client
from gyre.inference.external.vllm import VllmServerApi
from gyre.types.errors import EngineError
from gyre.types.sampling import GenerateRequest, SamplingParams

WEIGHTS = {"a": torch.arange(6.0).reshape(2, 3), "b": torch.ones(4, dtype=torch.bfloat16)}
METRICS = (
    "# HELP vllm:cache_config_info Information of the LLMEngine CacheConfig\n"
    'vllm:cache_config_info{block_size="32",cache_dtype="auto",num_gpu_blocks="256"} 1.0\n'
)


class Server:
    """Answers as vLLM does, and keeps what it was told."""

    def __init__(self, *, refuses=()):
        self.refuses = refuses
        self.orders = []
        self.seen = None
        self.version = "default"

    async def handle(self, request):
        path, data = request.path, await request.read()
        body = json.loads(data) if data else {}
        if request.method == "POST":
            self.orders.append((path, dict(request.query), body))
        if path in self.refuses:
            return web.json_response({"error": "no room"}, status=500)
        if path == "/update_weights":
            self.seen = load_file(body["update_info"]["path"])
            assert (
                body["update_info"]["num_bytes"] == Path(body["update_info"]["path"]).stat().st_size
            )
        self.version = body.get("new_version") or body.get("weight_version") or self.version
        if path == "/metrics":
            return web.Response(text=METRICS)
        if path == "/v1/models":
            return web.json_response({"data": [{"id": "m", "max_model_len": 2048}]})
        return web.json_response({"weight_version": self.version})

    def paths(self):
        return [path for path, _, _ in self.orders]


@pytest.fixture
def told(serving, tmp_path):
    def tell(server, order):
        async def scenario():
            async with asyncio.timeout(PATIENCE_S), serving(server.handle) as url:
                remote = VllmServerApi("v", url, client(), share=tmp_path, version=0)
                try:
                    return await order(remote)
                finally:
                    await remote.close()

        return asyncio.run(scenario())

    return tell


def test_a_folder_is_read_under_its_version_and_running_calls_compute_again(told):
    server = Server()

    async def order(remote):
        await remote.reload(Path("/w"), version=6, keep_kv=False)
        return await remote.version()

    assert 6 == told(server, order)
    assert [
        ("/collective_rpc", {}, {"method": "reload_weights", "kwargs": {"weights_path": "/w"}}),
        ("/update_weight_version", {}, {"new_version": "6"}),
        ("/reset_prefix_cache", {"reset_running_requests": "true"}, {}),
    ] == server.orders


def test_weights_in_memory_go_through_a_file_that_is_gone_afterwards(told, tmp_path):
    server = Server()

    async def order(remote):
        for version in (6, 7):
            await remote.receive(WEIGHTS.items(), version=version, keep_kv=True)
        return await remote.version()

    assert 7 == told(server, order)
    one = ["/start_weight_update", "/update_weights", "/finish_weight_update"]
    assert ["/init_weight_transfer_engine", *one, *one] == server.paths()
    assert all(torch.equal(WEIGHTS[name], server.seen[name]) for name in WEIGHTS)
    assert [] == list(tmp_path.iterdir())


def test_the_file_is_gone_also_when_it_is_refused(told, tmp_path):
    server = Server(refuses=("/update_weights",))
    with pytest.raises(EngineError, match="no room"):
        told(server, lambda remote: remote.receive(WEIGHTS.items(), version=6, keep_kv=False))

    assert [] == list(tmp_path.iterdir())


def test_it_says_how_much_it_holds(told):
    room = told(Server(), lambda remote: remote.room())

    assert (2048, 256, 32) == (room.context_tokens, room.blocks, room.block_tokens)


def test_calls_wait_in_a_pause_and_are_not_ended_by_it(told):
    server = Server()
    told(server, lambda remote: remote.pause())

    assert [("/pause", {"mode": "keep", "clear_cache": "false"}, {})] == server.orders


class Streams(Server):
    """Sends one event of two tokens, and the rest once it was told of other weights."""

    def __init__(self):
        super().__init__()
        self.changed = asyncio.Event()

    async def handle(self, request):
        if request.path != "/inference/v1/generate":
            answered = await super().handle(request)
            if request.path == "/reset_prefix_cache":
                self.changed.set()
            return answered
        self.asked = json.loads(await request.read())
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(frame([7, 8]))
        await self.changed.wait()
        await response.write(frame([9]))
        spans = [("0", 0, 2), ("6", 2, 4)]
        await response.write(frame([10], finish="length", spans=spans) + b"data: [DONE]\n\n")
        return response


def frame(ids, *, finish=None, spans=None):
    content = [{"token_id": one, "logprob": -0.5} for one in ids]
    told = spans and [{"version": one, "start": a, "end": b} for one, a, b in spans]
    choice = {"token_ids": ids, "logprobs": {"content": content}, "finish_reason": finish}
    choices = [choice | {"weight_versions": told}]
    return b"data: " + json.dumps({"choices": choices}).encode() + b"\n\n"


def test_tokens_after_a_load_come_with_the_end_and_their_own_version(told):
    async def order(remote):
        ask = GenerateRequest(
            id="x",
            input_ids=array("i", [5, 6]).tobytes(),
            sampling=SamplingParams(max_tokens=4, stop_ids=(2,)),
            execution="e",
        )
        chunks = []
        async for chunk in remote.generate(ask):
            chunks.append((chunk.ids, chunk.version, chunk.finish))
            if len(chunks) == 1:
                await remote.reload(Path("/w"), version=6, keep_kv=False)
        return chunks

    server = Streams()

    assert [
        ([7, 8], 0, None),
        ([], None, None),
        ([9, 10], 6, None),
        ([], None, "length"),
    ] == told(server, order)
    assert ("x", [5, 6]) == (server.asked["request_id"], server.asked["token_ids"])
    settings = server.asked["sampling_params"]
    assert (True, [2], 0) == (
        settings["ignore_eos"],
        settings["stop_token_ids"],
        settings["logprobs"],
    )
