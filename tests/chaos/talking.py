"""Agents that talk to a proxy while something goes wrong, and what they saw of it."""

import asyncio
import json
import time
import urllib.request
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
from tests.flows.test_engine_loss import streamed
from tests.waiting import PATIENCE_S, patience

from gyre.storage.call_log import logs, read
from gyre.testing.processes import EngineProcess, OpenedExecution, StandaloneProxy
from gyre.testing.script import logprobs
from gyre.trajectory.tree import grow


@dataclass
class Talk:
    """What agents saw, call by call."""

    turns: int
    done: int = 0
    in_flight: int = 0
    failed: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    """What was refused as retryable, and asked for again."""
    seconds: list[float] = field(default_factory=list)
    """Of each call that was answered."""
    holds_last: asyncio.Event | None = None
    """If there is one, every agent keeps its last turn until it is set."""
    _changed: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def wait_done(self, count: int, *, in_flight: int = 1) -> None:
        """So many calls are answered, and so many others are on their way."""
        async with self._changed:
            await self._changed.wait_for(
                lambda: self.failed or (self.done >= count and self.in_flight >= in_flight)
            )

    async def wait_refused(self, count: int) -> None:
        async with self._changed:
            await self._changed.wait_for(lambda: self.failed or len(self.refused) >= count)

    async def refuse(self, told: str) -> None:
        async with self._changed:
            self.refused.append(told)
            self._changed.notify_all()

    async def begin(self) -> None:
        async with self._changed:
            self.in_flight += 1
            self._changed.notify_all()

    async def end(self, seconds: float | None) -> None:
        async with self._changed:
            self.in_flight -= 1
            if seconds is not None:
                self.done += 1
                self.seconds.append(seconds)
            self._changed.notify_all()

    def slowest_s(self, part: float = 0.99) -> float:
        """What that part of the calls stays below."""
        return float(np.quantile(self.seconds, part))

    def bearable_s(self) -> float:
        """What a call may take beside others: much, because machines pause, but not for ever."""
        return max(patience(60.0), 10.0 * self.slowest_s(0.5))


async def agent(
    session: aiohttp.ClientSession, execution: OpenedExecution, talk: Talk, *, stream: bool
) -> None:
    """One conversation in the chat dialect, each answer checked; only a 503 is asked again."""
    history: list[dict[str, Any]] = [{"role": "user", "content": f"task of {execution.id}"}]
    for turn in range(talk.turns):
        if talk.holds_last is not None and turn == talk.turns - 1:
            await talk.holds_last.wait()
        began = time.monotonic()
        await talk.begin()
        message, told = await _asked(session, execution, history, stream=stream)
        while told.startswith("503"):
            await talk.refuse(told)
            await asyncio.sleep(0.05)
            message, told = await _asked(session, execution, history, stream=stream)
        if message is None or not message["content"].startswith(f"step {turn}"):
            talk.failed.append(f"{execution.id} {turn}: {told}")
            await talk.end(None)
            return
        await talk.end(time.monotonic() - began)
        call = message["tool_calls"][0]["id"]
        history += [message, {"role": "tool", "tool_call_id": call, "content": "done"}]


async def _asked(
    session: aiohttp.ClientSession,
    execution: OpenedExecution,
    history: list[dict[str, Any]],
    *,
    stream: bool,
) -> tuple[dict[str, Any] | None, str]:
    body = {"model": "policy", "messages": history, "stream": stream}
    headers = {"authorization": f"Bearer {execution.key}"}
    url = f"{execution.url}/v1/chat/completions"
    try:
        async with session.post(url, json=body, headers=headers) as answer:
            data = await answer.read()
    except aiohttp.ClientError as error:
        return None, repr(error)
    if answer.status != 200:
        return None, f"{answer.status} {data[:200]!r}"
    if stream and b'data: {"error"' in data:
        # A stream that had begun can only end with the refusal.
        return None, f"503 {data[-400:]!r}"
    message = streamed(data) if stream else json.loads(data)["choices"][0]["message"]
    return message, ""


Meanwhile = Callable[[Talk], Awaitable[None]]


def talked(proxy: StandaloneProxy, *, agents: int, turns: int, meanwhile: Meanwhile) -> Talk:
    """Agents talk, half of them in streams, while `meanwhile` does what it does."""
    talk = Talk(turns=turns)

    async def run() -> None:
        executions = [proxy.open(f"x{number}") for number in range(agents)]
        timeout = aiohttp.ClientTimeout(total=PATIENCE_S)
        connector = aiohttp.TCPConnector(limit=0)
        async with (
            asyncio.timeout(PATIENCE_S),
            aiohttp.ClientSession(connector=connector, timeout=timeout) as session,
            asyncio.TaskGroup() as group,
        ):
            for number, one in enumerate(executions):
                group.create_task(agent(session, one, talk, stream=bool(number % 2)))
            group.create_task(meanwhile(talk))

    asyncio.run(run())
    assert [] == talk.failed
    assert agents * turns == talk.done
    return talk


def assert_exact(folder: Path, engines: list[EngineProcess], *, agents: int, turns: int) -> int:
    """Every call is one record, of tokens that an engine sent; how many moved between two."""
    asked = {tuple(ask.input_ids) for engine in engines for ask in engine.asks()}
    trees = [grow(read(path).records) for path in logs(folder)]
    moved = 0
    assert agents == len(trees)
    for tree in trees:
        assert turns == len(tree.calls)
        assert tree.is_complete
        assert {None} == {node.fork for node in tree.calls.values()}
        for node in tree.calls.values():
            prompt, output = tree.prompt_ids(node.id), tree.output_ids(node.id)
            assert tuple(prompt.tolist()) in asked
            assert node.num_output == sum(span.tokens for span in node.spans)
            expected = logprobs(prompt.tobytes(), output.tolist())
            assert expected == tree.output_logprobs(node.id).astype(np.float64).tolist()
            moved += len({span.engine for span in node.spans}) > 1
    return moved


async def steer(engine: EngineProcess, path: str, body: object) -> Any:
    """Tells a scripted engine what to do from now on."""

    def post() -> Any:
        url, data = f"{engine.url}/script/{path}", json.dumps(body).encode()
        with urllib.request.urlopen(url, data=data, timeout=PATIENCE_S) as answer:
            return json.load(answer)

    return await asyncio.to_thread(post)


def count(proxy: StandaloneProxy, name: str) -> float:
    """A count of the proxy over all its labels."""
    return sum(
        value for key, value in proxy.metrics().items() if key.partition("{")[0] == f"gyre_{name}"
    )
