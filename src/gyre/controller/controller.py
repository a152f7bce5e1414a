"""The controller: starts every process of a run, hosts the scheduler, and ends what it started.

Rule 1: a run that is over, or asked to stop, leaves no process; one that fails leaves its
executions and its proxy to the controller that resumes it.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from pathlib import Path
from socket import socket
from typing import Any

from gyre.aio import Interrupted, run_until
from gyre.config.run_config import RunConfig
from gyre.config.toml import as_toml
from gyre.controller import resume, run_dir, stop
from gyre.controller.cells.processes import CellProcesses
from gyre.controller.components import ComponentBuilder, Components, ControllerContext
from gyre.controller.executions import facts_server
from gyre.controller.executions.facts_server import FactsEndpoint, FactsServer
from gyre.controller.process_specs import harness_for, open_tasks, proxy_plan
from gyre.controller.proxy_processes import ProxyProcesses, recorded_plans
from gyre.controller.recovered_state import RecoveredState, recover
from gyre.controller.resource_usage import ProcessRoots, ResourceSampler
from gyre.controller.run_dir import RunDir
from gyre.controller.run_file import RunFile
from gyre.controller.run_loop import Decided, Listener, RunLoop
from gyre.controller.run_status import SETTINGS, fixed_settings
from gyre.journal.reader import Header, JournalContents
from gyre.journal.writer import Journal
from gyre.model import checkpoint_store
from gyre.model.checkpoint_store import Checkpoint
from gyre.net.http_server import listener, serving, told_to_stop
from gyre.proxy.spec import ProxySpec, engines_of
from gyre.rollout.facts import FactEntry
from gyre.scheduler.messages import StopReason
from gyre.scheduler.replay import JOURNAL_EVENTS, plain_shape
from gyre.scheduler.scheduler import Scheduler
from gyre.storage.files import replace as replace_file
from gyre.types.errors import ConfigError, GyreError, TakenOver
from gyre.types.ids import ExecutionId
from gyre.types.run_events import TOLD, RunEnded

BEAT_S = 1.0
"""How often `tick` is called."""
SETTLE_S = 10.0
"""How long the journal may take to record the end of a run that is asked to stop."""


class Controller:
    """One run, from its first process to its last, or from where an earlier one left it."""

    def __init__(
        self,
        run: RunFile,
        folder: Path,
        *,
        resumes: bool = False,
        listeners: Sequence[Listener] = (),
        tick: Callable[[float], None] | None = None,
        decided: Decided | None = None,
        usage: ResourceSampler | None = None,
    ) -> None:
        """`tick` is called about once a second with the time of the run; `usage` measures what
        the run uses, unless it is None."""
        self._run = run
        self._resumes = resumes
        self._listeners = listeners
        self._tick = tick
        self._decided = decided
        self._usage = usage
        # Refused here and not at the first launch.
        harness_for(run.config)
        kind = run.config.sandbox.kind
        self._tasks = open_tasks(run.config.tasks, sandbox=kind)
        held_out = run.config.evaluation
        self._held_out = (
            open_tasks(held_out.tasks, sandbox=kind)
            if held_out.slots and held_out.tasks is not None
            else None
        )
        self._cell_processes = CellProcesses(run.config, folder)
        self._cells = self._cell_processes.cells
        self._spawned: set[asyncio.Task[None]] = set()
        self._facts_endpoint: FactsEndpoint
        self._proxies: ProxyProcesses
        self._run_loop: RunLoop
        self._group: asyncio.TaskGroup
        self._stopped: asyncio.Future[StopReason | None]
        self._has_begun = False
        self._is_over = False

    async def work(self) -> StopReason | None:
        """Why the run ended; None if it was asked to stop."""
        self._stopped = asyncio.get_running_loop().create_future()
        stop_requested = told_to_stop()
        try:
            async with AsyncExitStack() as stack:
                stack.push(self._say_what_is_left)
                return await self._work(stack, stop_requested)
        except BaseExceptionGroup as group:
            raise _named(group) from group

    def _say_what_is_left(self, _kind: Any, error: BaseException | None, _trace: Any) -> None:
        """With the error that ends it, unless all that is another controller's by now."""
        if error is None or self._leaves_nothing:
            return
        named = _named(error)
        if not isinstance(named, TakenOver):
            named.add_note(_left(self._places.run))

    async def _work(
        self, stack: AsyncExitStack, stop_requested: asyncio.Event
    ) -> StopReason | None:
        try:
            self._cell_processes.prepare(stack)
            journal, reading = self._open_journal()
            stack.enter_context(journal)
            replace_file(self._places.file, ("\n".join(as_toml(self._config)) + "\n").encode())
        except OSError as error:
            raise ConfigError(
                f"{self._cell_processes.folder}: cannot be written: {error}"
            ) from error
        found, since = self._recalled(reading)
        self._has_begun = found is not None
        is_over = found is not None and found.scheduler.stopped is not None
        before = _text(self._places.token)
        if reading is not None:
            await resume.kill_leftovers(self._places, proxy=found is None or is_over)
        await asyncio.to_thread(run_dir.remove_earlier, self._places)
        if found is not None and is_over:
            return found.scheduler.stopped
        try:
            # A stop that comes this early need not wait for what takes minutes to start.
            await run_until(stop_requested.wait(), self._start(stack, found, before))
            on = self._open_facts_server(stack)
            return await self._run_scheduler(journal, found, since, stop_requested, on)
        except Interrupted:
            self._is_over = True
            # This controller has not taken up what an earlier one left; it ends as by any stop.
            await stop.end_all(self._places, self._config.cluster, self._config.run.name)
            return None

    async def _start(
        self, stack: AsyncExitStack, found: RecoveredState | None, before: str
    ) -> None:
        """Every process that a run begins with, or goes on with."""
        await self._cell_processes.open(stack)
        shards = self._config.proxy.shards
        self._proxies = ProxyProcesses(
            self._places,
            self._cell_processes.session,
            note_pid=self._cell_processes.note_pid,
            shards=shards,
        )
        self._cell_processes.moved = self._proxies.set_address
        plans = None if found is None else recorded_plans(self._places, shards)
        if found is None or plans is None:
            await self._cell_processes.start(stack)
            await self._start_proxy(stack)
        else:
            plans = [self._reached(plan) for plan in plans]
            await self._proxies.take_over(plans, before=before, now=_text(self._places.token))
            stack.push_async_callback(self._stop_proxy)
            self._cell_processes.config = replace(self._config, proxy=plans[0].proxy)
            self._cell_processes.recall(
                stack, [(engine.name, engine.url) for engine in engines_of(plans[0])]
            )

    @property
    def _config(self) -> RunConfig:
        return self._cell_processes.config

    @property
    def _places(self) -> RunDir:
        return self._cell_processes.places

    # What there was

    def _open_journal(self) -> tuple[Journal, JournalContents | None]:
        config = self._config
        if self._resumes:
            return Journal.resume(self._places.journal, at=time.time(), kinds=JOURNAL_EVENTS)
        header = Header(
            run=config.run.name,
            seed=config.run.seed,
            started_at=time.time(),
            shape=plain_shape(self._run.shape),
            notes={
                "model": config.model.name,
                "nodes_per_cell": config.cells.nodes,
                SETTINGS: fixed_settings(self._run.config),
            },
        )
        return Journal.create(self._places.journal, header, kinds=JOURNAL_EVENTS), None

    def _recalled(self, reading: JournalContents | None) -> tuple[RecoveredState | None, int]:
        """None of a run that has not begun; and the version from which on steps are known."""
        if reading is None:
            return None, 0
        whole = [
            checkpoint.version
            for checkpoint in checkpoint_store.listed(self._places.checkpoints)
            if checkpoint.has_optimizer
        ]
        # The one before the last, because the last may turn out to be damaged.
        since = whole[-2] if len(whole) > 1 else 0
        found = recover(self._run.shape, reading.facts(JOURNAL_EVENTS), since=since)
        return (found, since) if found.has_started else (None, 0)

    # Processes

    async def _start_proxy(self, stack: AsyncExitStack) -> None:
        cells = self._cells.values()
        window = min(await asyncio.gather(*(cell.context_tokens() for cell in cells)))
        plan = proxy_plan(
            self._config,
            self._places,
            engines=tuple(f"gyre={cell.url}" for cell in cells),
            context_tokens=window,
        )
        plan = self._reached(plan)
        # Agent programs get the window as the cells report it.
        self._cell_processes.config = replace(self._config, proxy=plan.proxy)
        await self._proxies.start(plan)
        stack.push_async_callback(self._stop_proxy)

    def _reached(self, plan: ProxySpec) -> ProxySpec:
        """It listens where agent programs of other machines reach it, if there are any."""
        cluster = self._cell_processes.cluster
        if cluster.is_shared:
            return plan
        return replace(plan, proxy=replace(plan.proxy, host=cluster.here.host))

    async def _stop_proxy(self) -> None:
        if self._leaves_nothing:
            await self._proxies.stop()

    @property
    def _leaves_nothing(self) -> bool:
        """No later controller has to go on with the executions and proxies there are."""
        return self._is_over or not self._has_begun

    def _open_facts_server(self, stack: AsyncExitStack) -> socket:
        """Where it was, so that supervisors find it; else they are read from the disk."""
        found = facts_server.recorded_endpoint(self._places.facts_endpoint)
        try:
            on = listener(self._cell_processes.cluster.here.host, found.port)
        except ConfigError:
            on = listener(self._cell_processes.cluster.here.host, 0)
        stack.callback(on.close)
        self._facts_endpoint = FactsEndpoint(port=on.getsockname()[1], token=found.token)
        facts_server.note(self._places.facts_endpoint, self._facts_endpoint)
        return on

    # The run

    async def _run_scheduler(
        self,
        journal: Journal,
        found: RecoveredState | None,
        since: int,
        stop_requested: asyncio.Event,
        on: socket,
    ) -> StopReason | None:
        scheduler = Scheduler(self._run.shape) if found is None else found.scheduler
        self._run_loop = RunLoop(
            scheduler,
            journal,
            execute=lambda commands: parts.executor.execute(commands),
            listeners=(*self._listeners, lambda now, fact: parts.executor.noticed(now, fact)),
            decided=self._decided,
        )
        published = None if found is None else resume.published(found, self._places)
        parts = await run_until(stop_requested.wait(), self._joined(scheduler, published))
        if found is not None:
            resume.restore(found, since, parts)

        async def receive(execution: ExecutionId, entry: FactEntry) -> None:
            for supervisors in parts.executions:
                await supervisors.receive(execution, entry)

        async with serving(FactsServer(self._facts_endpoint.token, receive), on):
            try:
                return await self._until_over(stop_requested, parts, found)
            finally:
                if self._leaves_nothing:
                    # A run that is asked to stop may be resumed, and any other end is for good.
                    for_good = self._stopped.done() and self._stopped.result() is not None
                    await asyncio.gather(
                        *(supervisors.end(for_good=for_good) for supervisors in parts.executions)
                    )

    async def _joined(self, scheduler: Scheduler, published: Checkpoint | None) -> Components:
        versions = await self._proxies.ask(lambda proxy: proxy.routes_version())
        return await self._component_builder().parts(
            scheduler, published, routes_version=max(versions)
        )

    def _component_builder(self) -> ComponentBuilder:
        context = ControllerContext(
            record=self._record,
            settled=self._run_loop.settled,
            clock=lambda: self._run_loop.now,
            spawn=self._spawn,
            stop=self._stop,
        )
        return ComponentBuilder(
            self._cell_processes,
            self._proxies.client,
            self._run.shape,
            context,
            facts_endpoint=self._facts_endpoint,
            tasks=self._tasks,
            held_out=self._held_out,
        )

    async def _until_over(
        self,
        stop_requested: asyncio.Event,
        parts: Components,
        found: RecoveredState | None,
    ) -> StopReason | None:
        work = [
            self._run_loop.work(),
            parts.coordinator.work(),
            parts.routes.work(),
            self._tick_on(),
        ]
        work += [supervisors.look_after() for supervisors in parts.executions]
        work.append(self._proxies.watch(record=self._record, again=parts.routes.again))
        if self._usage is not None:
            measuring = self._usage.work(
                self._roots, record=self._record, clock=lambda: self._run_loop.now
            )
            work.append(measuring)
        async with asyncio.TaskGroup() as self._group:
            always = [self._group.create_task(service) for service in work]
            if found is None:
                with suppress(Interrupted):
                    await run_until(stop_requested.wait(), parts.training_components.begin())
            else:
                resume.continue_run(found, parts, record=self._record, spawn=self._spawn)
            self._has_begun = True
            always.append(self._group.create_task(parts.training_components.health.work()))
            always.append(self._group.create_task(self._wait_for_stop(stop_requested)))
            reason = await self._stopped
            self._record(RunEnded(reason=TOLD if reason is None else reason.value))
            # A full disk does not keep a user from stopping a run.
            with suppress(TimeoutError):
                async with asyncio.timeout(SETTLE_S if reason is None else None):
                    await self._run_loop.settled()
            self._is_over = True
            for task in (*always, *self._spawned):
                task.cancel()
        return reason

    # Watching

    async def _tick_on(self) -> None:
        while True:
            await asyncio.sleep(BEAT_S)
            if self._tick is not None:
                self._tick(self._run_loop.now)

    def _roots(self) -> ProcessRoots:
        return ProcessRoots(
            cells=self._cell_processes.pids,
            proxies=self._proxies.pids,
            fork_clients=self._cell_processes.supervisors.pids,
            attempts=self._places.attempts,
        )

    def _record(self, fact: Any) -> None:
        self._run_loop.record(fact)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        task = self._group.create_task(work)
        self._spawned.add(task)
        task.add_done_callback(self._spawned.discard)
        return task

    async def _wait_for_stop(self, stop_requested: asyncio.Event) -> None:
        await stop_requested.wait()
        self._stop(None)

    def _stop(self, reason: StopReason | None) -> None:
        if not self._stopped.done():
            self._stopped.set_result(reason)


def _named(error: BaseException) -> BaseException:
    """The first failure of a group that has a name of ours, or what there is as it is."""
    for exception in error.exceptions if isinstance(error, BaseExceptionGroup) else ():
        found = _named(exception)
        if isinstance(found, GyreError):
            return found
    return error


def _left(folder: Path) -> str:
    """What a user can do after the controller failed."""
    return (
        f"  executions and the proxy go on without it: gyre resume {folder} goes on with them, "
        f"gyre stop {folder} ends them"
    )


def _text(path: Path) -> str:
    return path.read_text().strip() if path.exists() else ""
