"""Proxy shards: started, found again by the next controller, and started again if they die.

Rule 1: each keeps its port for as long as the run lasts, because agent programs know no other.
Rule 2: one that lives and does not answer is made to end, and another takes its place.
Rule 3: each outlives its controller, so that calls wait for the next one and do not fail.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Self, TypeVar
from urllib.parse import urlsplit

import aiohttp

from gyre.aio import Interrupted, run_until
from gyre.cluster.liveness import wait_or_kill_if_silent
from gyre.cluster.process import AdoptedProcess, SpawnedProcess, holder_of_port, holds_log
from gyre.controller.run_dir import RunDir
from gyre.controller.run_loop import RunLoop, warn
from gyre.proxy.client import ProxyClient, ShardedProxyClient
from gyre.proxy.spec import ProxySpec
from gyre.storage.files import PROXY, proxy_address_file, read_plan, write_plan
from gyre.types.errors import BoundaryError, ConfigError, TakenOver
from gyre.types.ids import EngineName, named
from gyre.types.protocols import ProcessHandle
from gyre.types.run_events import ProxyRestarted
from gyre.version import fingerprint

T = TypeVar("T")
READY_S = 300.0
"""How long it may take to be ready: many logs are indexed."""
ANSWER_S = 10.0
"""How long it may take to say anything, or one that was found to accept its new controller."""
RETRY_FIRST_S, RETRY_MOST_S = 0.5, 10.0
GIVE_UP_S = 600.0
"""How long one that does not start is tried again; calls wait meanwhile."""
MOST_DEATHS, DEATHS_S = 10, 60.0
"""A proxy that dies oftener in so short a time will not recover by itself."""


class ProxyLauncher:
    """Starts the process of one proxy shard of a run, and finds the one that there is."""

    def __init__(self, places: RunDir, session: aiohttp.ClientSession, *, shard: int = 0) -> None:
        self.name = named(PROXY, shard)
        self.log = places.log(self.name)
        self._shard = shard
        self._places = places
        self._session = session

    async def start(self, plan: ProxySpec) -> tuple[ProcessHandle, ProxyClient]:
        """A new process that takes calls; ConfigError if it does not come to that."""
        arguments = ("-m", "gyre.proxy.main", str(self.write(plan)))
        process = await SpawnedProcess.start(self.name, arguments, self.log)
        self._places.note_pid(self.name, process.pid)
        try:
            return process, ProxyClient(await process.ready(READY_S), self._session)
        except (ConfigError, asyncio.CancelledError):
            # Also when this task is cancelled: no other one would end the process.
            await process.stop()
            raise

    async def start_again(
        self, plan: ProxySpec, *, until: float
    ) -> tuple[ProcessHandle, ProxyClient]:
        """Waits, with a warning, for a full disk or a port that is just being left."""
        loop, pause_s, reported = asyncio.get_running_loop(), RETRY_FIRST_S, ""
        while True:
            try:
                return await self.start(plan)
            except (ConfigError, OSError) as error:
                if loop.time() >= until:
                    raise
                if (why := await asyncio.to_thread(self._why_not, plan, error)) != reported:
                    reported = why
                    warn(f"{why}; tried again for {until - loop.time():.0f} s")
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, RETRY_MOST_S)

    def write(self, plan: ProxySpec) -> Path:
        """The file that the next process, or the next controller, reads the plan from."""
        return write_plan(self._places.plan(self.name), plan)

    def found(self) -> tuple[AdoptedProcess, ProxyClient] | None:
        """The process that an earlier controller left."""
        try:
            pid = int(self._places.pid(self.name).read_text())
        except (OSError, ValueError):
            return None
        if not holds_log(pid, self.log):
            return None
        url = proxy_address_file(self._places.run, self._shard).read_text().strip()
        return AdoptedProcess(self.name, pid, self.log), ProxyClient(url, self._session)

    @property
    def has_moved(self) -> bool:
        """The running proxy knows its files by a folder that is not the run's any more."""
        known = read_plan(self._places.plan(self.name), ProxySpec).folder
        return known.resolve() != self._places.run.resolve()

    def _why_not(self, plan: ProxySpec, error: Exception) -> str:
        """In a line, with the process that has its port."""
        last = str(error).strip().splitlines()[-1:]
        port = plan.proxy.port
        holder = holder_of_port(port) if port else None
        taken = "" if holder is None else f"; port {port} is taken by {holder}"
        return f"the {self.name} does not start: {''.join(last)}{taken}"


class ProxyProcess:
    """One proxy shard of a run, whose process is started again when it ends."""

    def __init__(
        self, launcher: ProxyLauncher, plan: ProxySpec, process: ProcessHandle, client: ProxyClient
    ) -> None:
        """`plan` says where it listens."""
        self._launcher = launcher
        self._plan = plan
        self._process = process
        self._deaths: deque[float] = deque(maxlen=MOST_DEATHS)
        self.client = client
        """Stays the same when the process is started again, because its address does."""

    @classmethod
    async def start(cls, launcher: ProxyLauncher, plan: ProxySpec) -> Self:
        """A new process; from now on the plan says where it listens."""
        process, client = await launcher.start(plan)
        port = urlsplit(client.url).port
        assert port is not None
        plan = replace(plan, proxy=replace(plan.proxy, port=port))
        launcher.write(plan)
        return cls(launcher, plan, process, client)

    @classmethod
    async def take_over(
        cls, launcher: ProxyLauncher, plan: ProxySpec, *, before: str, now: str
    ) -> Self:
        """The process that an earlier controller left, or a new one in its place.

        `before` is the token that it knew, `now` the only one that it obeys afterwards.
        """
        until = asyncio.get_running_loop().time() + GIVE_UP_S
        if (found := launcher.found()) is not None:
            process, client = found
            if not launcher.has_moved and await _obeys(client, before=before, now=now):
                return cls(launcher, plan, process, client)
            await process.kill()
        return cls(launcher, plan, *await launcher.start_again(plan, until=until))

    async def watch(self, loop: RunLoop, *, again: Callable[[], None]) -> None:
        """Whenever it ends it is started again, and `again` is called for what it has forgotten."""
        clock = asyncio.get_running_loop().time
        while True:
            await self._until_gone()
            began = clock()
            self._note_death(began)
            await self._start_again(until=began + GIVE_UP_S)
            loop.record(ProxyRestarted(seconds=clock() - began))
            again()

    def _note_death(self, now: float) -> None:
        """ConfigError when there are too many."""
        if len(self._deaths) == MOST_DEATHS and now - self._deaths[0] < DEATHS_S:
            many, log = MOST_DEATHS + 1, self._launcher.log
            raise ConfigError(f"the proxy ended {many} times in {DEATHS_S:g} s: see {log}")
        self._deaths.append(now)

    async def ask(self, question: Callable[[ProxyClient], Coroutine[Any, Any, T]]) -> T:
        """Its answer, before `watch` runs: one that dies meanwhile is started again."""
        while True:
            with suppress(Interrupted):
                return await run_until(self._until_gone(), question(self.client))
            await self._start_again(until=asyncio.get_running_loop().time() + GIVE_UP_S)

    async def _start_again(self, *, until: float) -> None:
        self._process, _ = await self._launcher.start_again(self._plan, until=until)

    async def _until_gone(self) -> None:
        end = await wait_or_kill_if_silent(self._process, lambda: self.client.answers(ANSWER_S))
        if end.silent_s is not None:
            # Its log ends in the middle and does not say why.
            why = f"did not answer for {end.silent_s:g} s and was ended"
            warn(f"the {self._launcher.name} {why}: another takes its place")

    @property
    def pid(self) -> int:
        return self._process.pid

    async def set_address(self, engine: EngineName, url: str) -> None:
        """The engine is asked there from now on, also by a proxy that is started again."""
        self._plan = replace(self._plan, moved={**self._plan.moved, engine: url})
        self._launcher.write(self._plan)
        await self.client.set_address(engine, url)

    async def stop(self) -> None:
        await self._process.stop()


def recorded_plan(places: RunDir, shard: int = 0) -> ProxySpec | None:
    """The spec of an earlier controller's proxy; None if it never had one.

    Its files are where the run's folder is now.
    """
    path = places.plan(named(PROXY, shard))
    if not path.exists():
        return None
    found = read_plan(path, ProxySpec)
    key = None if found.engine_key is None else places.token
    return replace(found, folder=places.run, engine_key=key)


async def _obeys(client: ProxyClient, *, before: str, now: str) -> bool:
    """Not one that hangs, does not know the token that was written last, or is of another
    Gyre, which may have learnt to answer otherwise since."""
    try:
        async with asyncio.timeout(ANSWER_S):
            return await client.take_over(before=before, now=now) == fingerprint()
    except (BoundaryError, TakenOver, TimeoutError):
        return False


class ProxyProcesses:
    """All proxy shards of one run."""

    def __init__(self, places: RunDir, session: aiohttp.ClientSession, *, shards: int) -> None:
        self._launchers = [ProxyLauncher(places, session, shard=shard) for shard in range(shards)]
        self._all: list[ProxyProcess] = []

    @property
    def client(self) -> ShardedProxyClient:
        return ShardedProxyClient([shard.client for shard in self._all])

    @property
    def pids(self) -> list[int]:
        return [shard.pid for shard in self._all]

    async def start(self, plan: ProxySpec) -> None:
        """New processes; either all of them take calls, or none is left."""
        starts = [
            ProxyProcess.start(launcher, shard_plan(plan, shard))
            for shard, launcher in enumerate(self._launchers)
        ]
        ended = await asyncio.gather(*starts, return_exceptions=True)
        self._all = [one for one in ended if isinstance(one, ProxyProcess)]
        for failure in ended:
            if isinstance(failure, BaseException):
                # Whichever failed has ended by itself.
                await self.stop()
                raise failure

    async def take_over(self, plans: Sequence[ProxySpec], *, before: str, now: str) -> None:
        """The processes that an earlier controller left, or new ones in their places."""
        self._all = await _all(
            ProxyProcess.take_over(launcher, plan, before=before, now=now)
            for launcher, plan in zip(self._launchers, plans, strict=True)
        )

    async def watch(self, loop: RunLoop, *, again: Callable[[int], None]) -> None:
        """Whichever ends is started again, and `again` is called with its number."""
        await _all(
            one.watch(loop, again=partial(again, shard)) for shard, one in enumerate(self._all)
        )

    async def ask(self, question: Callable[[ProxyClient], Coroutine[Any, Any, T]]) -> list[T]:
        """What each shard answers, before `watch` runs."""
        return await _all(shard.ask(question) for shard in self._all)

    async def set_address(self, engine: EngineName, url: str) -> None:
        """The engine is asked there from now on, by all of them."""
        await _all(shard.set_address(engine, url) for shard in self._all)

    async def stop(self) -> None:
        await _all(shard.stop() for shard in self._all)


def shard_plan(plan: ProxySpec, shard: int) -> ProxySpec:
    """The same for another shard; a port that was chosen is the first of as many."""
    port = plan.proxy.port
    return replace(
        plan, shard=shard, proxy=replace(plan.proxy, port=port + shard if port else port)
    )


def recorded_plans(places: RunDir, shards: int) -> list[ProxySpec] | None:
    """The specs of an earlier controller's shards; None if it never had all of them."""
    found = [recorded_plan(places, shard) for shard in range(shards)]
    known = [plan for plan in found if plan is not None]
    return known if len(known) == shards else None


async def _all(work: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Of each what it returned; the first that fails ends the others."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(coroutine) for coroutine in work]
    return [task.result() for task in tasks]
