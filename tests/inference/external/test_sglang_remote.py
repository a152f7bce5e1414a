"""SGLang's orders in both generations: with sessions around weights, and without."""

import asyncio
import json
from array import array
from datetime import timedelta

import pytest
import torch
from aiohttp import web
from tests import process_wide as opened_once
from tests.waiting import PATIENCE_S
from torch.distributed import TCPStore
from torch.distributed import distributed_c10d as groups

from gyre.inference.clients.http import client
from gyre.inference.external.sglang import SglangServerApi, buckets
from gyre.types.errors import EngineError
from gyre.types.sampling import GenerateRequest, SamplingParams

opened_once.by_torch()

WEIGHTS = [("a", torch.arange(6.0).reshape(2, 3)), ("b", torch.ones(4, dtype=torch.bfloat16))]


class Server:
    """Answers as SGLang does, with one worker that really receives what it is sent."""

    def __init__(self, *, has_sessions, refuses=()):
        self.has_sessions = has_sessions
        self.refuses = refuses
        self.orders = []
        self.received = {}
        self._groups = {}
        self._aborted = asyncio.Event()

    async def handle(self, request):
        path = request.path
        body = json.loads(await request.read() or b"{}")
        self.orders.append((request.method, path, body))
        if path == "/generate":
            return await self._generate(request, body)
        if path == "/abort_request":
            self._aborted.set()
        if path.endswith("_weight_update") and not self.has_sessions:
            return web.json_response({"detail": "Not Found"}, status=404)
        if path == "/server_info":
            return web.json_response({"max_total_num_tokens": 96, "page_size": 4, "tp_size": 1})
        if path == "/model_info":
            return web.json_response({"weight_version": "5"})
        if path == "/init_weights_update_group":
            await asyncio.to_thread(self._join, body)
        if path == "/update_weights_from_distributed":
            await asyncio.to_thread(self._receive, body)
        if path in self.refuses:
            return web.json_response({"success": False, "message": "no room"}, status=400)
        return web.json_response({"success": True, "message": "done"})

    async def _generate(self, request, body):
        """Three tokens, the ids that follow the prompt's last, and then silence until an abort."""
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        self._aborted.clear()
        prompt = body["input_ids"]
        ids = [prompt[-1] + more for more in (1, 2, 3)][: body["sampling_params"]["max_new_tokens"]]
        is_done = len(ids) < 3
        await self._say(response, prompt, ids, {"type": "length"} if is_done else None)
        if not is_done:
            await self._aborted.wait()
            await self._say(response, prompt, ids, {"type": "abort"})
        await response.write(b"data: [DONE]\n\n")
        return response

    async def _say(self, response, prompt, ids, finish):
        """By default each event repeats the whole output."""
        meta = {
            "finish_reason": finish,
            "prompt_tokens": len(prompt),
            "completion_tokens": len(ids),
            "output_token_logprobs": [[-0.5, token, None] for token in ids],
            "weight_version": "5",
        }
        event = {"output_ids": ids, "meta_info": meta, "prompt_token_ids": prompt}
        await response.write(b"data: " + json.dumps(event).encode() + b"\n\n")

    def _join(self, body):
        """The group as torch makes it for a name."""
        name = body["group_name"]
        store = TCPStore(body["master_address"], body["master_port"], is_master=False)
        for prefix in (name, f"{name}/", "cpu/"):
            store = groups.PrefixStore(prefix, store)
        self._groups[name] = groups.ProcessGroupGloo(
            store, body["rank_offset"], body["world_size"], timedelta(seconds=PATIENCE_S)
        )

    def _receive(self, body):
        for name, dtype, shape in zip(body["names"], body["dtypes"], body["shapes"], strict=True):
            held = torch.empty(shape, dtype=getattr(torch, dtype))
            options = groups.BroadcastOptions()
            options.rootRank = 0
            self._groups[body["group_name"]].broadcast([held], options).wait()
            self.received[name] = held

    def paths(self):
        return [path for method, path, _ in self.orders if method == "POST"]


@pytest.fixture(autouse=True)
def _on_loopback(monkeypatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")


def told(serving, server, order):
    async def scenario():
        async with asyncio.timeout(PATIENCE_S), serving(server.handle) as url:
            remote = SglangServerApi("s", url, client(key="k"))
            try:
                return await order(remote)
            finally:
                await remote.close()

    return asyncio.run(scenario())


async def receive(remote):
    await remote.receive(WEIGHTS, version=5, keep_kv=False)
    return await remote.version()


@pytest.mark.parametrize("has_sessions", [True, False])
def test_weights_arrive_bit_for_bit_in_both_generations(has_sessions, serving):
    server = Server(has_sessions=has_sessions)
    version = told(serving, server, receive)
    ends = ["/end_weight_update"] if has_sessions else []

    assert 5 == version
    assert [
        "/init_weights_update_group",
        "/begin_weight_update",
        "/update_weights_from_distributed",
        *ends,
    ] == server.paths()
    for name, one in WEIGHTS:
        assert one.dtype == server.received[name].dtype
        assert torch.equal(one, server.received[name])


def test_the_version_and_the_flush_come_with_the_last_part(serving):
    server = Server(has_sessions=True)
    told(serving, server, receive)
    (update,) = [body for _, path, body in server.orders if path.endswith("_distributed")]

    assert ("5", True) == (update["weight_version"], update["flush_cache"])


def test_a_session_is_closed_although_its_weights_are_refused(serving):
    server = Server(has_sessions=True, refuses=("/update_weights_from_distributed",))
    with pytest.raises(EngineError, match="no room"):
        told(serving, server, receive)

    assert "/end_weight_update" == server.paths()[-1]


def test_a_pause_is_over_when_the_scheduler_has_answered_something_else(serving):
    server = Server(has_sessions=True)
    told(serving, server, lambda remote: remote.pause())

    assert [
        ("POST", "/pause_generation", {"mode": "retract"}),
        ("POST", "/abort_request", {"abort_all": True}),
        ("GET", "/server_info", {}),
    ] == server.orders


def ask(*, max_tokens):
    return GenerateRequest(
        id="call",
        input_ids=array("i", [8, 9]).tobytes(),
        sampling=SamplingParams(max_tokens=max_tokens),
        execution="e",
    )


async def read(remote, asked, chunks, heard):
    async for chunk in remote.generate(asked):
        chunks.append(chunk)
        heard.set()


async def pause_and_resume(remote):
    chunks, heard = [], asyncio.Event()
    reading = asyncio.create_task(read(remote, ask(max_tokens=5), chunks, heard))
    await heard.wait()
    await remote.pause()
    await remote.resume()
    await reading
    return chunks


def test_a_call_goes_on_after_a_pause_where_its_request_was_ended(serving):
    server = Server(has_sessions=True)
    chunks = told(serving, server, pause_and_resume)
    requests = [body for _, path, body in server.orders if path == "/generate"]

    assert [10, 11, 12, 13, 14] == [one for chunk in chunks for one in chunk.ids]
    assert ["length"] == [chunk.finish for chunk in chunks if chunk.finish]
    assert [[8, 9]] == [chunk.prompt_ids for chunk in chunks if chunk.prompt_ids]
    assert [[8, 9], [8, 9, 10, 11, 12]] == [one["input_ids"] for one in requests]
    assert [5, 2] == [one["sampling_params"]["max_new_tokens"] for one in requests]
    assert 2 == len({one["rid"] for one in requests})


async def cancel_while_paused(remote):
    chunks, heard = [], asyncio.Event()
    reading = asyncio.create_task(read(remote, ask(max_tokens=5), chunks, heard))
    await heard.wait()
    await remote.pause()
    await remote.abort("call")
    await reading
    return chunks


def test_a_call_that_waits_for_the_end_of_a_pause_can_be_ended(serving):
    server = Server(has_sessions=True)
    chunks = told(serving, server, cancel_while_paused)

    assert [10, 11, 12] == [one for chunk in chunks for one in chunk.ids]
    assert ["abort"] == [chunk.finish for chunk in chunks if chunk.finish]
    assert 1 == server.paths().count("/generate")


async def cancel(remote):
    chunks, heard = [], asyncio.Event()
    reading = asyncio.create_task(read(remote, ask(max_tokens=5), chunks, heard))
    await heard.wait()
    await remote.abort("call")
    await reading
    return chunks


def test_an_abort_names_the_request_that_is_under_way_and_nothing_goes_on(serving):
    server = Server(has_sessions=True)
    chunks = told(serving, server, cancel)
    named = {path: body["rid"] for _, path, body in server.orders if "rid" in body}

    assert "abort" == chunks[-1].finish
    assert named["/generate"] == named["/abort_request"]


def test_a_folder_is_read_under_its_version_with_an_empty_cache(serving, tmp_path):
    server = Server(has_sessions=True)
    told(serving, server, lambda remote: remote.reload(tmp_path, version=6, keep_kv=False))

    assert [{"model_path": str(tmp_path), "weight_version": "6", "flush_cache": True}] == [
        body for _, _, body in server.orders
    ]


def test_memory_is_asked_for_only_once_nothing_runs(serving):
    """Asked earlier, SGLang ends itself."""
    server = Server(has_sessions=True, refuses=("/flush_cache",))
    with pytest.raises(EngineError, match="flush_cache"):
        told(serving, server, lambda remote: remote.release())

    assert ["/flush_cache"] == server.paths()


def test_tensors_go_in_their_order_as_many_together_as_fit():
    named = [(str(number), torch.zeros(number)) for number in (2, 3, 9, 1, 1)]
    found = [[name for name, _ in part] for part in buckets(named, most_bytes=20)]

    assert [["2", "3"], ["9"], ["1", "1"]] == found
