"""What is asked of every peer: five kinds of load, each ending in one sample."""

import asyncio
import time
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
from benchmarks.peers.contestants import CHAT, Peer, Started
from benchmarks.peers.load import Answer, Connection, Conversation, Route, connected, message_of
from benchmarks.peers.processes import get, rss_bytes, settled_cpu

BUILD = 4
"""How much longer tool outputs are while a history is built, so that building takes less."""

Sample = dict[str, Any]
"""Plain numbers, as they go into a result file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How much of one kind of load."""

    calls: int
    """Measured calls of one run."""
    warm_calls: int
    """Calls before them, so that imports and pools are paid for."""
    connections: int = 1
    stream: bool = False
    body_bytes: int = 0
    """Size a history has when measuring begins."""
    output_chars: int = 1_200
    """Tool output added by each call."""
    delay_s: float = 0.0
    """Pause of the mock engine before each reply."""


async def short(peer: Peer, started: Started, plan: Plan, upstream_port: int) -> Sample:
    """Fresh two-message conversations over several connections at once."""
    await many_short(started, plan, plan.warm_calls, first=0)
    return await _costed(started, plan.calls, many_short(started, plan, plan.calls, first=10**6))


async def long(peer: Peer, started: Started, plan: Plan, upstream_port: int) -> Sample:
    """One conversation with a long history, to which every call adds a few hundred tokens."""
    conversation = Conversation(tools=True, stream=False)
    conversation.ask()
    async with connected(started.port) as connection:
        route = started.routes[0]
        if peer.remembers:
            await _grow_to(conversation, connection, route, plan)
        else:
            conversation.fill(plan.body_bytes, BUILD * plan.output_chars)
        await _grow(conversation, connection, route, plan, plan.warm_calls)
        first_bytes = len(conversation.body)
        measured = _grow(conversation, connection, route, plan, plan.calls)
        sample = await _costed(started, plan.calls, measured)
    return sample | {"first_body_bytes": first_bytes, "last_body_bytes": len(conversation.body)}


async def latency(peer: Peer, started: Started, plan: Plan, upstream_port: int) -> Sample:
    """One call at a time, in turns with calls that go straight to the mock engine."""
    block = 25
    direct = Started(pid=started.pid, port=upstream_port, routes=[Route(path=CHAT)])
    await many_short(started, plan, plan.warm_calls, first=0)
    await many_short(direct, plan, plan.warm_calls, first=0)
    through: list[Answer] = []
    straight: list[Answer] = []
    for first in range(0, plan.calls, block):
        straight += await many_short(direct, plan, block, first=10**6 + first)
        through += await many_short(started, plan, block, first=10**6 + first)
    return {
        "calls": len(through),
        "direct_s": quantiles([answer.total_s for answer in straight]),
        "through_s": quantiles([answer.total_s for answer in through]),
    }


async def many(peer: Peer, started: Started, plan: Plan, upstream_port: int) -> Sample:
    """Every execution calls at the same moment, and the engine makes all of them wait."""
    await many_short(started, plan, plan.warm_calls, first=0)
    measured = many_short(started, plan, plan.calls, first=10**6)
    sample = await _costed(started, plan.calls, measured)
    return sample | {"peak_upstream": orjson.loads(get(upstream_port, "/health"))["peak"]}


async def memory(peer: Peer, started: Started, plan: Plan, upstream_port: int) -> Sample:
    """Resident memory while one execution's history grows call by call."""
    conversation = Conversation(tools=True, stream=False)
    conversation.ask()
    points: list[dict[str, int | None]] = []
    async with connected(started.port) as connection:
        for number in range(plan.calls + 1):
            if number % (plan.calls // 20) == 0:
                settled_cpu(started.pid)
                points.append(
                    {
                        "calls": number,
                        "rss_bytes": rss_bytes(started.pid),
                        "body_bytes": len(conversation.body),
                        "tokens": started.tokens(),
                    }
                )
            await _grow(conversation, connection, started.routes[0], plan, 1)
    return {"calls": plan.calls, "points": points}


SCENARIOS = {scenario.__name__: scenario for scenario in (short, long, latency, many, memory)}


async def _costed(started: Started, calls: int, work: Coroutine[Any, Any, list[Answer]]) -> Sample:
    """CPU and wall seconds of the peer while `work` runs and until the peer is idle after it."""
    before, began = settled_cpu(started.pid), time.perf_counter()
    answers = await work
    wall_s = time.perf_counter() - began
    used = settled_cpu(started.pid).since(before)
    return {
        "calls": calls,
        "failed": sum(answer.status != 200 for answer in answers),
        "cpu_s": round(used.total_s, 6),
        "user_s": round(used.user_s, 2),
        "system_s": round(used.system_s, 2),
        "wall_s": round(wall_s, 4),
        "latency_s": quantiles([answer.total_s for answer in answers]),
        "rss_bytes": rss_bytes(started.pid),
    }


async def many_short(started: Started, plan: Plan, calls: int, *, first: int) -> list[Answer]:
    """So many short calls, spread evenly over the connections."""
    answers: list[Answer] = []
    share = -(-calls // plan.connections)

    async def caller(index: int) -> None:
        numbers = range(index * share, min((index + 1) * share, calls))
        async with connected(started.port) as connection:
            for number in numbers:
                conversation = Conversation(tools=False, stream=plan.stream)
                conversation.num_calls = first + number
                conversation.ask()
                route = started.routes[index % len(started.routes)]
                answers.append(await connection.post(route, conversation.body))

    async with asyncio.TaskGroup() as callers:
        for index in range(plan.connections):
            callers.create_task(caller(index))
    return answers


async def _grow(
    conversation: Conversation, connection: Connection, route: Route, plan: Plan, calls: int
) -> list[Answer]:
    answers = []
    for _ in range(calls):
        answer = await connection.post(route, conversation.body)
        answers.append(answer)
        conversation.go_on(message_of(answer), plan.output_chars)
    return answers


async def _grow_to(
    conversation: Conversation, connection: Connection, route: Route, plan: Plan
) -> None:
    """Reach the size by real calls with longer tool outputs, so that building takes fewer."""
    while len(conversation.body) < plan.body_bytes:
        answer = await connection.post(route, conversation.body)
        conversation.go_on(message_of(answer), BUILD * plan.output_chars)


def quantiles(values: Sequence[float]) -> dict[str, float]:
    """Nearest-rank quantiles, in seconds."""
    ordered = sorted(values)
    last = len(ordered) - 1
    names = {"p10": 0.1, "p50": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}
    return {name: round(ordered[round(last * q)], 7) for name, q in names.items()}
