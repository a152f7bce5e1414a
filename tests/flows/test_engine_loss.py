"""Engines that die under load, seen from the agents' side."""

import asyncio
import json
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import numpy as np
import pytest
from tests.flows.steering import steer
from tests.waiting import PATIENCE_S

from gyre.storage.call_log import logs, read
from gyre.testing.script import logprobs
from gyre.trajectory.tree import Tree, grow

EXECUTIONS, TURNS = 24, 8
PATIENT = aiohttp.ClientTimeout(total=PATIENCE_S)
"""By default a connection has half a minute to be made."""


@dataclass
class Load:
    """Agents that talk, and what came of it."""

    done: int = 0
    failed: list[str] = field(default_factory=list)
    reached: asyncio.Event = field(default_factory=asyncio.Event)
    turned: asyncio.Event = field(default_factory=asyncio.Event)
    """A call has ended since somebody cleared it, well or badly."""


async def agent(session, execution, load, *, stream, mark):
    """The turns of one conversation in the chat dialect, each answer checked."""
    history = [{"role": "user", "content": f"task of {execution.id}"}]
    for turn in range(TURNS):
        body = {"model": "policy", "messages": history, "stream": stream}
        headers = {"authorization": f"Bearer {execution.key}"}
        url = f"{execution.url}/v1/chat/completions"
        async with session.post(url, json=body, headers=headers) as answer:
            data = await answer.read()
        load.turned.set()
        message = streamed(data) if stream else json.loads(data)["choices"][0]["message"]
        if answer.status != 200 or not message["content"].startswith(f"step {turn}: "):
            load.failed.append(f"{execution.id} {turn}: {answer.status} {data[:200]!r}")
            return
        call = message["tool_calls"][0]
        history += [message, {"role": "tool", "tool_call_id": call["id"], "content": "done"}]
        load.done += 1
        if load.done == mark:
            load.reached.set()


def streamed(data: bytes) -> dict:
    """The message that a stream of chunks spells."""
    message = {"role": "assistant", "content": "", "tool_calls": []}
    frames = data.decode().split("\n\n")
    assert "data: [DONE]" in frames
    for frame in frames:
        if not frame.startswith("data: {"):
            continue
        for choice in json.loads(frame[6:])["choices"]:
            delta = choice["delta"]
            message["content"] += delta.get("content") or ""
            for name in ("reasoning_content", "tool_calls"):
                if delta.get(name):
                    message[name] = message.get(name) or type(delta[name])()
                    message[name] += delta[name]
    for call in message["tool_calls"]:
        call.pop("index")
    return message


def trees(folder: Path) -> list[Tree]:
    return [grow(read(path).records) for path in logs(folder)]


@pytest.mark.parametrize("wire", ["sglang", "vllm"])
def test_no_call_fails_when_one_of_two_engines_is_killed(stage, wire):
    """FAULTS 1 and 2: two hundred calls, half of them streams; tokens before the cut are kept."""
    # So slow that calls are at an engine nearly all their time, however busy the machine is.
    engines = [stage.engine(wire=wire, chunk_delay_s=0.1, chunk_tokens=16) for _ in range(2)]
    proxy = stage.proxy(*engines)
    load = Load()

    async def run():
        async with (
            aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0), timeout=PATIENT
            ) as session,
            asyncio.TaskGroup() as group,
        ):
            for number in range(EXECUTIONS):
                execution = await asyncio.to_thread(proxy.open, f"x{number}")
                group.create_task(agent(session, execution, load, stream=bool(number % 2), mark=60))
            await load.reached.wait()
            # Replies of the first engine stop in their middle from now on; one has when it dies.
            await asyncio.to_thread(steer, engines[0], "fault", {"kind": "stall", "after": 16})
            await asyncio.to_thread(steer, engines[0], "stalled", 1)
            engines[0].kill()

    asyncio.run(run())
    assert [] == load.failed
    assert EXECUTIONS * TURNS == load.done
    assert 0 < proxy.metrics()["gyre_reroutes_total"]
    moved = check_record(stage.folder / "run", engines)
    assert 0 < moved


def check_record(folder: Path, engines) -> int:
    """Every prompt is one an engine was sent, every log-probability its own; calls that moved."""
    asked = {tuple(ask.input_ids) for engine in engines for ask in engine.asks()}
    moved = 0
    for tree in trees(folder):
        assert TURNS == len(tree.calls)
        assert tree.is_complete
        assert {None} == {node.fork for node in tree.calls.values()}
        for node in tree.calls.values():
            prompt, output = tree.prompt_ids(node.id), tree.output_ids(node.id)
            assert tuple(prompt.tolist()) in asked
            assert node.num_output == sum(span.tokens for span in node.spans)
            assert (
                logprobs(prompt.tobytes(), output.tolist())
                == tree.output_logprobs(node.id).astype(np.float64).tolist()
            )
            moved += len({span.engine for span in node.spans}) > 1
    return moved


def test_a_drained_engine_hands_its_calls_over(stage):
    """A drain moves calls in flight; when it returns, the engine is empty and nothing failed."""
    engines = [stage.engine(chunk_delay_s=0.005, chunk_tokens=16) for _ in range(2)]
    proxy = stage.proxy(*engines)
    load = Load()
    first = f"127.0.0.1:{engines[0].port}"

    async def run():
        async with aiohttp.ClientSession(timeout=PATIENT) as session, asyncio.TaskGroup() as group:
            for number in range(8):
                execution = await asyncio.to_thread(proxy.open, f"x{number}")
                group.create_task(agent(session, execution, load, stream=True, mark=20))
            await load.reached.wait()
            status = await asyncio.to_thread(proxy.control, "POST", f"engines/{first}/drain")
            assert 0 == {one["name"]: one["in_flight"] for one in status["engines"]}[first]

    asyncio.run(run())
    assert [] == load.failed
    assert 8 * TURNS == load.done


def test_calls_follow_the_routes_of_a_controller(stage):
    """Executions go back and forth while they talk; every call is where it was sent, none fails."""
    engines = [stage.engine(chunk_delay_s=0.005, chunk_tokens=16) for _ in range(2)]
    proxy = stage.proxy(*engines, options=("--routed",))
    names = [f"127.0.0.1:{engine.port}" for engine in engines]
    load = Load()

    async def run():
        async with aiohttp.ClientSession(timeout=PATIENT) as session, asyncio.TaskGroup() as group:
            for number in range(8):
                execution = await asyncio.to_thread(proxy.open, f"x{number}")
                group.create_task(agent(session, execution, load, stream=True, mark=20))
            # The first calls stop in the middle of their replies, and so there are some to move.
            await asyncio.to_thread(steer, engines[0], "fault", {"kind": "stall", "after": 16})
            await send(1)
            await asyncio.to_thread(steer, engines[0], "stalled", 1)
            await asyncio.to_thread(steer, engines[0], "fault", None)
            version, moved = 2, await send(2)
            while load.done + len(load.failed) < 8 * TURNS:
                # However slow the machine is, some call gets to its end between two orders.
                await load.turned.wait()
                load.turned.clear()
                version += 1
                moved += await send(version)
            return moved

    async def send(version):
        """Every execution to one engine, and with the next version to the other."""
        routes = {f"x{number}": names[(version + 1) % 2] for number in range(8)}
        order = {"version": version, "routes": routes}
        answer = await asyncio.to_thread(proxy.control, "PUT", "routes", order)
        return answer["moved"]

    moved = asyncio.run(run())
    assert [] == load.failed
    assert moved > 0
    counted = proxy.metrics()
    assert not [name for name in counted if name.startswith("gyre_failures_total")]


def test_a_call_outlives_the_absence_of_every_engine(stage):
    """A held request is answered when an engine comes back; the client saw only a wait."""
    engine = stage.engine()
    proxy = stage.proxy(engine)
    execution = proxy.open("x")
    port = engine.port
    engine.kill()
    load = Load()

    async def run():
        async with aiohttp.ClientSession(timeout=PATIENT) as session, asyncio.TaskGroup() as group:
            task = group.create_task(agent(session, execution, load, stream=True, mark=0))
            while not await asyncio.to_thread(held, proxy):
                assert not task.done()
            stage.engine(port=port)

    asyncio.run(run())
    assert [] == load.failed
    assert TURNS == load.done


def held(proxy) -> bool:
    """Whether the router has given up on an engine at least once."""
    states = [name for name in proxy.metrics() if name.startswith("gyre_engine_state")]
    return any('state="broken"' in name for name in states)
