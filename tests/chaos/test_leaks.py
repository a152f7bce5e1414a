"""Hundreds of small faults, one after another: what a proxy holds does not grow with them."""

import asyncio
import random
from functools import partial

import aiohttp
import pytest
from tests.chaos.held import files_but_connections_to, held, most
from tests.chaos.talking import Talk, agent, steer
from tests.waiting import wait_until

from gyre.storage.call_log import logs, read
from gyre.types.call_records import CallClosed

pytestmark = pytest.mark.slow

ROUNDS, AGENTS, TURNS = 9, 16, 3
LEAVERS = 4
"""Of a round; whether one is answered before it is gone is chance."""
KINDS = ["die", "json", "nan", "refuse", "abort", "lengths"]
MEMORY_BYTES = 24 * 2**20
"""What may come on top between the first third of the rounds and the last."""


async def leaves(session, execution):
    """A client that asks and is gone, most often before the answer."""
    body = {"model": "policy", "messages": [{"role": "user", "content": "never mind"}]}
    headers = {"authorization": f"Bearer {execution.key}"}
    url = f"{execution.url}/v1/chat/completions"
    asking = asyncio.create_task(session.post(url, json=body, headers=headers))
    await asyncio.sleep(0.005)
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)


def test_what_a_proxy_holds_does_not_grow_with_the_faults_it_has_met(stage):
    """FAULTS 43: every round has new executions, broken answers, and clients that leave."""
    engines = [stage.engine("short", chunk_tokens=4, chunk_delay_s=0.001) for _ in range(2)]
    proxy = stage.proxy(*engines)
    ports = {engine.port for engine in engines}
    files = partial(files_but_connections_to, proxy.pid, ports)
    at_first = files()
    chance = random.Random(1)
    samples = []
    faults = 0

    async def round_of(number, session):
        nonlocal faults
        talk = Talk(turns=TURNS)
        opened = [proxy.open(f"x{number}-{one}") for one in range(AGENTS)]
        for engine in engines:
            wrong = [{"kind": chance.choice(KINDS), "after": chance.randint(0, 9)} for _ in "123"]
            await steer(engine, "faults", [one for fault in wrong for one in (fault, None, None)])
            faults += len(wrong)
        async with asyncio.TaskGroup() as group:
            for at, execution in enumerate(opened):
                group.create_task(agent(session, execution, talk, stream=bool(at % 2)))
                if at % (AGENTS // LEAVERS) == 0:
                    group.create_task(leaves(session, execution))
        assert ([], AGENTS * TURNS) == (talk.failed, talk.done)
        for execution in opened:
            proxy.close(execution.id)
        samples.append(held(proxy.pid))

    async def all_rounds():
        connector = aiohttp.TCPConnector(limit=0, force_close=True)
        async with aiohttp.ClientSession(connector=connector) as session:
            for number in range(ROUNDS):
                await round_of(number, session)

    asyncio.run(all_rounds())
    early, late = most(samples[: ROUNDS // 3]), most(samples[-ROUNDS // 3 :])
    # Connections of who left may take a while to close.
    wait_until(lambda: files() <= at_first + 8, "files that are closed")
    wait_until(lambda: held(proxy.pid).threads <= early.threads + 2, "threads that have ended")
    asked = sum(len(engine.asks()) for engine in engines)
    closed = sum(
        isinstance(one, CallClosed)
        for path in logs(stage.folder / "run")
        for one in read(path).records
    )

    assert 0 <= closed - ROUNDS * AGENTS * TURNS <= ROUNDS * LEAVERS
    assert ROUNDS * AGENTS * TURNS + faults // 2 < asked, "little went wrong"
    assert late.memory_bytes - early.memory_bytes < MEMORY_BYTES
