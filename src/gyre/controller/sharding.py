"""The processes of a run's proxy: one for each shard, repaired without a word to the others."""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import aiohttp

from gyre.controller.proxying import ProxyProcess, recorded_plan
from gyre.controller.run_dir import RunDir
from gyre.proxy.proxied import ProxyClient
from gyre.proxy.sharded import ShardedProxyClient
from gyre.proxy.spec import ProxySpec
from gyre.types.ids import EngineName

T = TypeVar("T")


class ProxyProcesses:
    """All shards of one run, whichever processes they are now."""

    def __init__(
        self,
        places: RunDir,
        session: aiohttp.ClientSession,
        *,
        note_pid: Callable[[str, int], None],
        shards: int,
    ) -> None:
        self._all = [
            ProxyProcess(places, session, note_pid=note_pid, shard=shard) for shard in range(shards)
        ]

    @property
    def client(self) -> ShardedProxyClient:
        return ShardedProxyClient([one.client for one in self._all])

    @property
    def pids(self) -> list[int]:
        return [one.pid for one in self._all]

    async def start(self, plan: ProxySpec) -> None:
        """New processes; either all of them take calls, or none is left."""
        starts = [one.start(shard_plan(plan, shard)) for shard, one in enumerate(self._all)]
        ended = await asyncio.gather(*starts, return_exceptions=True)
        errors = [one for one in ended if one is not None]
        if errors:
            # Whichever failed has ended by itself.
            started = [one for one, error in zip(self._all, ended, strict=True) if error is None]
            await asyncio.gather(*(one.stop() for one in started))
            raise errors[0]

    async def take_over(self, plans: Sequence[ProxySpec], *, before: str, now: str) -> None:
        """The processes that an earlier controller left, or new ones in their places."""
        await _all(
            one.take_over(told, before=before, now=now)
            for one, told in zip(self._all, plans, strict=True)
        )

    async def watch(self, *, hear: Callable[[Any], None], again: Callable[[int], None]) -> None:
        """Whichever ends is started again, and `again` is called with its number."""
        await _all(
            one.watch(hear=hear, again=partial(again, shard)) for shard, one in enumerate(self._all)
        )

    async def ask(self, question: Callable[[ProxyClient], Coroutine[Any, Any, T]]) -> list[T]:
        """What each answers, before anybody watches them."""
        return await _all(one.ask(question) for one in self._all)

    async def set_address(self, engine: EngineName, url: str) -> None:
        """The engine is asked there from now on, by all of them."""
        await _all(one.set_address(engine, url) for one in self._all)

    async def stop(self) -> None:
        await _all(one.stop() for one in self._all)


def shard_plan(plan: ProxySpec, shard: int) -> ProxySpec:
    """The same for another shard; a port that was chosen is the first of as many."""
    port = plan.proxy.port
    return replace(
        plan, shard=shard, proxy=replace(plan.proxy, port=port + shard if port else port)
    )


def recorded_plans(places: RunDir, shards: int) -> list[ProxySpec] | None:
    """What the shards of an earlier controller were told; None if it never had all of them."""
    found = [recorded_plan(places, shard) for shard in range(shards)]
    known = [one for one in found if one is not None]
    return known if len(known) == shards else None


async def _all(work: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Of each what it returned; the first that fails ends the others."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one) for one in work]
    return [task.result() for task in tasks]
