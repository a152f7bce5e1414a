"""Many executions at once, and one that goes on for a thousand calls."""

import asyncio
from pathlib import Path

import aiohttp
from tests.waiting import PATIENCE_S

from gyre.storage.call_log import logs, read
from gyre.trajectory.tree import grow

MANY = 512
PATIENT = aiohttp.ClientTimeout(total=PATIENCE_S)
"""By default a connection has half a minute to be made."""


async def ask(session, execution, history):
    url = f"{execution.url}/v1/chat/completions"
    body = {"model": "m", "messages": history}
    headers = {"authorization": f"Bearer {execution.key}"}
    async with session.post(url, json=body, headers=headers) as answer:
        assert 200 == answer.status, await answer.text()
        message = (await answer.json())["choices"][0]["message"]
    call = message["tool_calls"][0]["id"]
    return [*history, message, {"role": "tool", "tool_call_id": call, "content": "done"}]


def test_512_executions_at_once(stage):
    """Each in its own log and tree, all calls of a round in flight together."""
    proxy = stage.proxy(stage.engine(chunk_tokens=64), options=("--capacity", str(MANY)))
    executions = [proxy.open(f"x{number}") for number in range(MANY)]

    async def talk():
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector, timeout=PATIENT) as session:
            histories = [[{"role": "user", "content": f"of {one.id}"}] for one in executions]
            for _ in range(2):
                histories = await asyncio.gather(
                    *(
                        ask(session, one, history)
                        for one, history in zip(executions, histories, strict=True)
                    )
                )

    asyncio.run(talk())
    found = [grow(read(path).records) for path in logs(stage.folder / "run")]
    metrics = proxy.metrics()
    assert MANY == len(found)
    assert {2} == {len(tree.calls) for tree in found}
    assert {1} == {len(tree.leaves()) for tree in found}
    assert 2 * MANY == metrics["gyre_durable_waits_total"]
    # Calls that end together share a sync, though each execution has a log of its own.
    assert metrics["gyre_fdatasync_total"] < 2 * MANY


def resident_bytes(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * 4096


def test_memory_grows_with_unique_tokens_not_with_calls(stage):
    """SPEC 4.4: a thousand calls of one growing conversation hold each token once."""
    proxy = stage.proxy(stage.engine("short", chunk_tokens=64))
    execution = proxy.open("x")

    async def talk():
        history = [{"role": "user", "content": "begin"}]
        async with aiohttp.ClientSession(timeout=PATIENT) as session:
            for turn in range(1000):
                history = await ask(session, execution, history)
                if turn == 100:
                    early.append(resident_bytes(proxy.pid))

    early: list[int] = []
    asyncio.run(talk())
    tree = grow(read(next(logs(stage.folder / "run"))).records)
    last = tree.calls[1000]
    sent = sum(len(tree.prompt_ids(call)) for call in tree.calls)
    whole = len(tree.prompt_ids(last.id)) + last.num_output

    assert whole == tree.num_tokens == proxy.metrics()["gyre_tree_tokens"]
    assert 400 * tree.num_tokens < sent
    # Full prompts would hold four bytes for each of the tokens sent; trees and texts hold far less.
    assert resident_bytes(proxy.pid) - early[0] < sent
