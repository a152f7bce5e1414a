"""Rollouts: executions of tasks without training, from the first launch to the last score.

Rule 1: an execution holds its place from launch to termination, and until it is closed if asked to.
Rule 2: however a rollout ends, nothing that it started runs on; killed, it leaves supervisors.
Rule 3: in a folder of an earlier rollout it goes on: what has closed stays, what runs is adopted,
what was ended with it begins anew, and the rest is launched.
"""

import asyncio
import os
import re
import secrets
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from dataclasses import replace as replace_fields
from pathlib import Path
from typing import Protocol

import aiohttp
import uvloop

from gyre.aio import BackgroundTasks, run_loop
from gyre.cell.client import CellClient
from gyre.cluster.fork_client import ForkClient
from gyre.cluster.liveness import BEAT_S, Probe, wait_or_kill_if_silent
from gyre.cluster.process import AdoptedProcess, holder_of
from gyre.config.run_config import RunConfig
from gyre.controller import run_dir
from gyre.controller.cells.processes import READY_S, open_session
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
from gyre.controller.proxy_processes import ProxyLauncher
from gyre.controller.run_dir import RunDir
from gyre.evals.plan import EvalSpec, ServedWeights, remember
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
from gyre.storage.files import write_plan
from gyre.types.errors import ConfigError, GyreError
from gyre.types.ids import ExecutionId
from gyre.types.outcomes import Closed, Outcome, Terminated
from gyre.types.protocols import ProcessHandle
from gyre.types.tasks import Task

HOST = "127.0.0.1"

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


class EvalListener(Protocol):
    """Hears how a rollout goes."""

    def begun(self, num_executions: int) -> None:
        """Its tasks can be executed, and nothing is started yet."""

    def closed(self, result: EvalResult) -> None:
        """An execution has, now or under an earlier command."""


class EvalRunner:
    """Launches the executions of a rollout as slots become free, and keeps their results."""

    def __init__(
        self,
        plan: EvalSpec,
        tasks: Sequence[Task],
        places: RunDir,
        supervisors: Supervisors,
        results: EvalResults,
        progress: EvalListener | None,
    ) -> None:
        """`results` are those of earlier commands, and then of this one."""
        self._plan = plan
        self._tasks = tasks
        self._places = places
        self._supervisors = supervisors
        self._results = results
        self._progress = progress
        self._slots = asyncio.Semaphore(plan.concurrency)
        self._holds_slot = plan.config.schedule.evaluation_holds_slot
        self.whole = asyncio.Event()
        """Set once all executions have closed."""

    async def launch_all(self) -> None:
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
        if not self._holds_slot:
            self._slots.release()

    async def closed(self, execution: SupervisedExecution, fact: Closed) -> None:
        if self._holds_slot:
            self._slots.release()
        if fact.outcome is Outcome.SURPLUS:
            return  # It ends with everything else.
        found = await asyncio.to_thread(result_of, self._places.run, execution, fact)
        self._supervisors.forget(execution.name)
        self._results.add(found)
        if self._progress is not None:
            self._progress.closed(found)
        if len(self._results.all) == self._plan.members * len(self._tasks):
            self.whole.set()


@dataclass(frozen=True, slots=True)
class EvalServer:
    """A process that must not end before the rollout does."""

    process: ProcessHandle
    probe: Probe
    log: Path

    async def ended(self) -> str:
        """How, once it has by itself, or was made to because it did not answer."""
        end = await wait_or_kill_if_silent(self.process, self.probe)
        return f"the {self.process.name} {end}: see {self.log}"


def roll_out(
    plan: EvalSpec, *, progress: EvalListener | None = None
) -> tuple[list[EvalResult], bool]:
    """What became of the executions, and whether that is all of them."""
    check(sandbox_for(plan.config.sandbox))
    tasks = _checked_tasks(plan)
    num_executions = len(tasks) * plan.members
    if progress is not None:
        progress.begun(num_executions)
    work = _results(plan, tasks, progress)
    results = run_loop(work, loop_factory=uvloop.new_event_loop)
    return results, len(results) == num_executions


def _checked_tasks(plan: EvalSpec) -> list[Task]:
    """What cannot be ordered is refused before anything is started."""
    harness_for(plan.config)
    source = open_tasks(plan.config.tasks, sandbox=plan.config.sandbox.kind)
    tasks = [source.get(index) for index in range(len(source))]
    for task in tasks:
        order_for(plan.config, ExecutionId(""), task, url="", facts_url="")
    return tasks


async def _results(
    plan: EvalSpec, tasks: Sequence[Task], progress: EvalListener | None
) -> list[EvalResult]:
    """Of all executions, unless it is asked to stop."""
    stop_requested = told_to_stop()
    async with AsyncExitStack() as stack:
        places = await _take_folder(plan, tasks, stack)
        results = stack.enter_context(EvalResults(places.run))
        if progress is not None:
            for result in results.all:
                progress.closed(result)
        if len(results.all) == len(tasks) * plan.members:
            return results.all
        session = await stack.enter_async_context(open_session(places))
        fork_client = await ForkClient.open("gyre.rollout.main", places.log("nursery"))
        stack.push_async_callback(fork_client.close)
        servers, client, config = await _start_servers(plan, places, session, stack)
        on = listener(HOST, 0)
        stack.callback(on.close)
        facts_url = f"http://{HOST}:{on.getsockname()[1]}{PATH}"
        facts_token = secrets.token_urlsafe(32)
        background = BackgroundTasks()
        supervisors = Supervisors(
            ShardedProxyClient([client]),
            fork_client,
            order_of=lambda name, task, url: order_for(
                config, name, task, url=url, facts_url=facts_url
            ),
            facts_token=facts_token,
            spawn=background.start,
        )
        runner = EvalRunner(plan, tasks, places, supervisors, results, progress)
        async with serving(FactsServer(facts_token, supervisors.receive), on):
            try:
                async with background:
                    background.start(supervisors.look_after())
                    background.start(runner.launch_all())
                    end = await _first_end(servers, stop_requested, runner.whole)
            finally:
                await supervisors.end()
    if end is not None:
        raise ConfigError(end)
    return results.all


async def _take_folder(plan: EvalSpec, tasks: Sequence[Task], stack: AsyncExitStack) -> RunDir:
    """The folder is this process's alone, and of an earlier rollout only supervisors are left.

    They will find the next proxy.
    """
    plan.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    stack.callback(os.close, files.take(plan.folder, whose="rollout"))
    remember(plan, [task.id for task in tasks])
    places = run_dir.opened(plan.folder, stack)
    log = places.log("proxy")
    if (pid := holder_of(log)) is not None:
        await AdoptedProcess("proxy", pid, log).kill()
    await asyncio.to_thread(run_dir.remove_earlier, places)
    return places


async def _start_servers(
    plan: EvalSpec, places: RunDir, session: aiohttp.ClientSession, stack: AsyncExitStack
) -> tuple[list[EvalServer], ProxyClient, RunConfig]:
    """A proxy before the engines that are there, or before one that is started.

    The config has the window as the engines report it, which agent programs get.
    """
    config, engines, key = plan.config, plan.engines, plan.engine_key
    servers, window = [], config.proxy.context_tokens
    if not engines:
        process, engine = await _start_engine(plan, places, session, stack)
        servers.append(EvalServer(process, engine.answers, places.log("engine")))
        window = min(window, await engine.context_tokens())
        engines, key = (f"gyre={engine.url}",), places.token
    spec = proxy_plan(config, places, engines=engines, context_tokens=window)
    spec = replace_fields(spec, routed=False, engine_key=key)
    process, proxy = await ProxyLauncher(places, session).start(spec)
    stack.push_async_callback(process.stop)
    servers.append(EvalServer(process, lambda: proxy.answers(BEAT_S), places.log("proxy")))
    return servers, proxy, replace_fields(config, proxy=spec.proxy)


async def _start_engine(
    plan: EvalSpec, places: RunDir, session: aiohttp.ClientSession, stack: AsyncExitStack
) -> tuple[ProcessHandle, CellClient]:
    """A cell that only serves."""
    config, weights = plan.config, plan.weights
    spec = replace_fields(
        cell_plan(config, places, config.cells.count),
        name="engine",
        model=weights.model,
        version=weights.version,
        threads=config.cells.threads or os.cpu_count(),
    )
    path = write_plan(places.plan("engine"), spec)
    fork_client = await ForkClient.open("gyre.cell.main", places.log("engines"))
    stack.push_async_callback(fork_client.close)
    process = await fork_client.fork("engine", [str(path)], log=places.log("engine"))
    stack.push_async_callback(process.stop)
    return process, CellClient(spec.cell, await process.ready(READY_S), session)


async def _first_end(servers: Sequence[EvalServer], *events: asyncio.Event) -> str | None:
    """How a server has ended; None if one of the events came first."""
    ends = [asyncio.create_task(server.ended()) for server in servers]
    waits = [asyncio.create_task(event.wait()) for event in events]
    try:
        await asyncio.wait((*ends, *waits), return_when=asyncio.FIRST_COMPLETED)
        return next((end.result() for end in ends if end.done()), None)
    finally:
        for task in (*ends, *waits):
            task.cancel()
        await asyncio.gather(*ends, *waits, return_exceptions=True)


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
    """What is measured behind the last publication; None where no round is due, or it was made.

    The scheduler stops at that publication, so nothing can be launched under it (SPEC 6.6).
    """
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
    results, is_whole = roll_out(plan)
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
