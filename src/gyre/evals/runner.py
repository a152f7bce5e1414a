"""Executions without training; the last weights of a run on held-out tasks.

What an earlier rollout left in its folder: what it was asked for, and whom it had begun.

Rule 1: a rollout goes on only with what it began with, or its numbers would be of two things.

Executions without training: groups of a set of tasks, from the first launch to the last score.

Rule 1: an execution holds its place from launch to termination, and until it is closed if asked to.
Rule 2: however this ends, nothing that it started runs on; killed, it leaves supervisors.
Rule 3: in a folder of an earlier rollout it goes on: what has closed stays, what runs is adopted,
what was ended with it begins anew, and the rest is launched.

The weights that a run ends with, measured on its held-out tasks as `gyre evaluate` does it.

The scheduler stops at the last publication, so nothing can be launched under it (SPEC 6.6).
"""

import asyncio
import os
import re
import secrets
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from dataclasses import asdict
from dataclasses import replace as replace_fields
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import uvloop

from gyre.aio import run_loop
from gyre.cell.client import CellClient
from gyre.cluster.fork_client import ForkClient
from gyre.cluster.liveness import BEAT_S, Probe, wait_or_kill_if_silent
from gyre.cluster.process import AdoptedProcess, SpawnedProcess
from gyre.cluster.procfs import holder_of
from gyre.config.run_config import RunConfig
from gyre.controller import run_dir
from gyre.controller.executions.facts_server import PATH, FactsServer
from gyre.controller.executions.group_executions import name_of, next_name
from gyre.controller.executions.supervisors import SupervisedExecution, Supervisors
from gyre.controller.process_specs import (
    cell_plan,
    harness_for,
    open_tasks,
    order_for,
    proxy_plan,
    sandbox_for,
)
from gyre.controller.run_dir import RunDir
from gyre.evals.plan import ASKED_FILE, EvalSpec, ServedWeights
from gyre.evals.results import (
    EvalResult,
    EvalResults,
    EvalSummary,
    read_summary,
    result_of,
    summed_up,
)
from gyre.model.checkpoint_store import CHECKPOINTS, EVALUATIONS
from gyre.model.checkpoint_store import name_of as checkpoint_name
from gyre.net.http_server import listener, serving, told_to_stop
from gyre.proxy.client import ProxyClient, ShardedProxyClient
from gyre.proxy.main import connected
from gyre.rollout.environment import check
from gyre.storage import files
from gyre.storage.files import replace, write_plan
from gyre.types.errors import ConfigError, GyreError
from gyre.types.ids import ExecutionId
from gyre.types.outcomes import Closed, Outcome, Terminated
from gyre.types.protocols import ProcessHandle

FORMAT = 1
MAY_CHANGE = ("run", "schedule", "cells", "proxy", "router", "checkpoint", "trackers")
"""Tables about where and how fast, not about what."""
NAME = re.compile(r"g(\d{5,})(?:\.(\d+))?-(\d{2,})")
"""Group, how often it was begun anew, and member."""

Slot = tuple[int, int]
"""Task and member."""


def slot_of(name: str) -> Slot | None:
    """None for what is no execution of a rollout."""
    found = NAME.fullmatch(name)
    return None if found is None else (int(found[1]), int(found[3]))


def begun(attempts: Path) -> dict[Slot, ExecutionId]:
    """Executions that have a folder; of one that was begun anew, the last."""
    newest: dict[Slot, ExecutionId] = {}
    for path in attempts.iterdir() if attempts.is_dir() else ():
        slot = slot_of(path.name)
        if slot is not None and _again(path.name) >= _again(newest.get(slot, path.name)):
            newest[slot] = ExecutionId(path.name)
    return newest


def _again(name: str) -> int:
    found = NAME.fullmatch(name)
    assert found is not None
    return int(found[2] or 0)


def remember(plan: EvalSpec, tasks: list[str]) -> None:
    """The folder says what it is of; ConfigError if that is something else already."""
    path = plan.folder / ASKED_FILE
    wanted = _asked(plan, tasks)
    if not path.exists():
        replace(path, msgspec.json.encode(wanted))
        return
    try:
        known = msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except (OSError, msgspec.MsgspecError) as error:
        message = f"{path}: expected what a rollout was asked for: {error}"
        raise ConfigError(message) from error
    differ = [name for name in sorted({*wanted, *known}) if wanted.get(name) != known.get(name)]
    if differ:
        message = (
            f"--run {plan.folder}: holds a rollout that was asked for something else; "
            f"these differ: {', '.join(differ)}"
        )
        raise ConfigError(message)


def _asked(plan: EvalSpec, tasks: list[str]) -> dict[str, Any]:
    """As it reads back from JSON."""
    tables = {name: table for name, table in asdict(plan.config).items() if name not in MAY_CHANGE}
    asked = {
        "format": FORMAT,
        "executions of a task": plan.members,
        "names of tasks": tasks,
        "weights": asdict(plan.weights),
        **tables,
    }
    read: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(asked))
    return read


HOST = "127.0.0.1"
READY_S = 300.0
"""How long a process may take to be ready: large weights are read."""


class EvalRunner:
    """Runs one rollout: an engine unless one is given, a proxy, and its executions."""

    def __init__(self, plan: EvalSpec, *, report: Callable[[EvalResult], None]) -> None:
        """Calls `report` with the result of every execution that has closed."""
        self._plan = plan
        self._config = plan.config
        harness_for(plan.config)
        source = open_tasks(plan.config.tasks, sandbox=plan.config.sandbox.kind)
        self._tasks = [source.get(index) for index in range(len(source))]
        for task in self._tasks:
            # What cannot be ordered is refused before anything is started.
            order_for(plan.config, ExecutionId(""), task, url="", facts_url="")
        self._report = report
        self._token = secrets.token_urlsafe(32)
        self._facts_token = secrets.token_urlsafe(32)
        self._slots = asyncio.Semaphore(plan.concurrency)
        self._spawned: set[asyncio.Task[None]] = set()
        self._group: asyncio.TaskGroup
        self._over = asyncio.Event()
        self._problem: str | None = None
        self._watched: list[tuple[ProcessHandle, Probe]] = []
        """Processes that must not end before the rollout does."""
        self._session: aiohttp.ClientSession
        self._places: RunDir
        self._supervisors: Supervisors
        self._results: EvalResults

    @property
    def num_executions(self) -> int:
        return len(self._tasks) * self._plan.members

    @property
    def is_whole(self) -> bool:
        return len(self._results.all) == self.num_executions

    async def work(self) -> list[EvalResult]:
        """What became of the executions: all of them, unless it was asked to stop."""
        stop_requested = told_to_stop()
        async with AsyncExitStack() as stack:
            self._places = await self._prepared(stack)
            self._results = stack.enter_context(EvalResults(self._places.run))
            for result in self._results.all:
                self._report(result)
            if self.is_whole:
                return self._results.all
            headers = {"Authorization": f"Bearer {self._token}"}
            timeout = aiohttp.ClientTimeout(total=None, sock_connect=5.0)
            self._session = await stack.enter_async_context(
                aiohttp.ClientSession(
                    headers=headers, timeout=timeout, connector=aiohttp.TCPConnector(limit=0)
                )
            )
            fork_client = await ForkClient.open("gyre.rollout.main", self._places.log("nursery"))
            stack.push_async_callback(fork_client.close)
            proxy = await self._start(stack)
            await self._execute(proxy, fork_client, stop_requested)
        if self._problem is not None:
            raise ConfigError(self._problem)
        return self._results.all

    # Before the first execution

    async def _prepared(self, stack: AsyncExitStack) -> RunDir:
        folder = self._plan.folder
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        stack.callback(os.close, files.take(folder, whose="rollout"))
        remember(self._plan, [task.id for task in self._tasks])
        places = run_dir.opened(folder, stack)
        await self._end_earlier(places)
        places.token.touch(mode=0o600)
        places.token.write_text(self._token)
        return places

    async def _end_earlier(self, places: RunDir) -> None:
        """What is left of a rollout that was killed is gone, but supervisors.

        They will find the next proxy.
        """
        log = places.log("proxy")
        if (pid := holder_of(log)) is not None:
            await AdoptedProcess("proxy", pid, log).kill()
        await asyncio.to_thread(run_dir.remove_earlier, places)

    async def _start(self, stack: AsyncExitStack) -> ShardedProxyClient:
        """A proxy before the engines that are there, or before one that is started."""
        plan, window = self._plan, self._config.proxy.context_tokens
        engines, key = plan.engines, plan.engine_key
        if not engines:
            client = await self._start_engine(stack)
            window = min(window, await client.context_tokens())
            engines, key = (f"gyre={client.url}",), self._places.token
        spec = proxy_plan(self._config, self._places, engines=engines, context_tokens=window)
        spec = replace_fields(spec, routed=False, engine_key=key)
        # Agent programs get the window as the engines report it.
        self._config = replace_fields(self._config, proxy=spec.proxy)
        path = write_plan(self._places.plan("proxy"), spec)
        log = self._places.log("proxy")
        process = await SpawnedProcess.start("proxy", ("-m", "gyre.proxy.main", str(path)), log)
        stack.push_async_callback(process.stop)
        proxy = ProxyClient(await process.ready(READY_S), self._session)
        self._watched.append((process, lambda: proxy.answers(BEAT_S)))
        return ShardedProxyClient([proxy])

    async def _start_engine(self, stack: AsyncExitStack) -> CellClient:
        """A cell that only serves."""
        config, weights = self._config, self._plan.weights
        plan = replace_fields(
            cell_plan(config, self._places, config.cells.count),
            name="engine",
            model=weights.model,
            version=weights.version,
            threads=config.cells.threads or os.cpu_count(),
        )
        path = write_plan(self._places.plan("engine"), plan)
        fork_client = await ForkClient.open("gyre.cell.main", self._places.log("engines"))
        stack.push_async_callback(fork_client.close)
        log = self._places.log("engine")
        process = await fork_client.fork("engine", [str(path)], log=log)
        stack.push_async_callback(process.stop)
        client = CellClient(plan.cell, await process.ready(READY_S), self._session)
        self._watched.append((process, client.answers))
        return client

    # The executions

    async def _execute(
        self, proxy: ShardedProxyClient, fork_client: ForkClient, stop_requested: asyncio.Event
    ) -> None:
        on = listener(HOST, 0)
        facts_url = f"http://{HOST}:{on.getsockname()[1]}{PATH}"
        self._supervisors = Supervisors(
            proxy,
            fork_client,
            order_of=lambda name, task, url: order_for(
                self._config, name, task, url=url, facts_url=facts_url
            ),
            facts_token=self._facts_token,
            spawn=self._spawn,
        )
        try:
            async with serving(FactsServer(self._facts_token, self._supervisors.receive), on):
                try:
                    await self._until_over(stop_requested)
                finally:
                    await self._supervisors.end()
        finally:
            on.close()

    async def _until_over(self, stop_requested: asyncio.Event) -> None:
        async with asyncio.TaskGroup() as self._group:
            always = [self._group.create_task(self._watch(*watch)) for watch in self._watched]
            always.append(self._group.create_task(self._supervisors.look_after()))
            always.append(self._group.create_task(self._launch_all()))
            waits = [asyncio.create_task(event.wait()) for event in (stop_requested, self._over)]
            try:
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in (*waits, *always, *self._spawned):
                    task.cancel()

    async def _launch_all(self) -> None:
        """Group after group, as fast as slots become free; what was begun before comes first."""
        done = {slot_of(result.execution) for result in self._results.all}
        slots = [
            (group, member)
            for group in range(len(self._tasks))
            for member in range(self._plan.members)
            if (group, member) not in done
        ]
        known = begun(self._places.attempts)
        for slot in sorted(slots, key=lambda slot: slot not in known):
            await self._slots.acquire()
            name, task = known.get(slot) or name_of(*slot), self._tasks[slot[0]]
            take = self._supervisors.adopt if slot in known else self._supervisors.launch
            take(name, task, self._places.attempts / name, self)

    # As supervisors report

    def lost(self, execution: SupervisedExecution, reason: str) -> None:
        """Begun anew in the place that it holds, under a name that has neither log nor folder."""
        name = next_name(execution.name)
        self._supervisors.launch(name, execution.task, self._places.attempts / name, self)

    async def terminated(self, execution: SupervisedExecution, fact: Terminated) -> None:
        if not self._config.schedule.evaluation_holds_slot:
            self._slots.release()

    async def closed(self, execution: SupervisedExecution, fact: Closed) -> None:
        if self._config.schedule.evaluation_holds_slot:
            self._slots.release()
        if fact.outcome is Outcome.SURPLUS:
            return  # It ends with everything else.
        found = await asyncio.to_thread(result_of, self._places.run, execution, fact)
        self._supervisors.forget(execution.name)
        self._results.add(found)
        self._report(found)
        if self.is_whole:
            self._over.set()

    async def _watch(self, process: ProcessHandle, probe: Probe) -> None:
        """A process that ends by itself ends the rollout."""
        end = await wait_or_kill_if_silent(process, probe)
        self._problem = f"the {process.name} {end}: see {self._places.log(process.name)}"
        self._over.set()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        task = self._group.create_task(work)
        self._spawned.add(task)
        task.add_done_callback(self._spawned.discard)
        return task


def roll_out(
    plan: EvalSpec,
    *,
    begun: Callable[[int], None],
    report: Callable[[EvalResult], None],
) -> tuple[list[EvalResult], bool]:
    """What became of the executions, and whether that is all of them."""
    check(sandbox_for(plan.config.sandbox))

    async def work() -> tuple[list[EvalResult], bool]:
        rollout = EvalRunner(plan, report=report)
        begun(rollout.num_executions)
        found = await rollout.work()
        return found, len(found) == rollout.num_executions

    return run_loop(work(), loop_factory=uvloop.new_event_loop)


def model_at(engines: tuple[str, ...], key_file: Path | None) -> str:
    """What the first of the engines says that it serves; an EngineError if it does not answer."""

    async def ask() -> str:
        async with connected(engines, key_file=key_file) as found:
            model = (await found[0].health()).model
            if model is None:
                message = f"{engines[0]}: does not say what it serves; expected --model"
                raise ConfigError(message)
            return model

    return run_loop(ask())


def due(config: RunConfig, run: Path) -> EvalSpec | None:
    """What is measured behind the last publication; None where no round is due, or it was made."""
    held_out, steps = config.evaluation, config.schedule.steps
    if not held_out.slots or held_out.tasks is None or steps is None:
        return None
    if steps // config.schedule.steps_per_burst % held_out.every:
        return None
    folder = run / EVALUATIONS / f"{checkpoint_name(steps)}-last"
    if (before := read_summary(folder)) is not None and before.is_whole:
        return None
    return EvalSpec(
        config=replace_fields(
            config,
            run=replace_fields(config.run, folder=str(folder.absolute())),
            tasks=held_out.tasks,
            proxy=replace_fields(config.proxy, port=0),
        ),
        folder=folder,
        members=1,
        concurrency=held_out.slots,
        weights=ServedWeights(
            model=str((run / CHECKPOINTS / checkpoint_name(steps)).absolute()),
            version=steps,
        ),
    )


def measured(plan: EvalSpec) -> EvalSummary:
    """What they come to, also kept in the folder of that evaluation; one begun before goes on."""
    results, is_whole = roll_out(plan, begun=lambda number: None, report=lambda one: None)
    what = "held-out tasks, behind the last publication"
    return summed_up(plan, results, tasks=what, is_whole=is_whole)


def why_not(plan: EvalSpec) -> str | None:
    """They are measured, or this is why not; what was trained is no worse for it."""
    try:
        is_whole = measured(plan).is_whole
    except (GyreError, OSError, ExceptionGroup) as error:
        first = error.exceptions[0] if isinstance(error, ExceptionGroup) else error
        return f"{type(first).__name__}: {first}"
    return None if is_whole else "told to stop"
