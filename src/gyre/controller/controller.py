"""The controller: starts every process of a run, hosts the scheduler, and ends what it started.

Rule 1: a run that is over, or asked to stop, leaves no process; one that fails leaves its
executions and its proxy to the controller that resumes it.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from pathlib import Path
from socket import socket
from typing import Any

from gyre.aio import Interrupted, run_until
from gyre.config.toml import as_toml
from gyre.controller import resume, run_dir, stop
from gyre.controller.cells.processes import CellProcesses, open_session
from gyre.controller.components import Components, begin_run, build_components
from gyre.controller.executions import facts_server
from gyre.controller.executions.facts_server import FactsEndpoint, FactsServer
from gyre.controller.process_specs import harness_for, open_tasks, proxy_plan
from gyre.controller.proxy_processes import ProxyProcesses, recorded_plans
from gyre.controller.recovered_state import RecoveredState, recover
from gyre.controller.resource_usage import ProcessRoots, ResourceSampler
from gyre.controller.run_dir import SETTINGS, RunDir, RunFile, fixed_settings
from gyre.controller.run_loop import Decided, Listener, RunLoop
from gyre.journal.journal import Header, Journal, JournalContents
from gyre.model import checkpoint_store
from gyre.net.http_server import listener, serving, told_to_stop
from gyre.proxy.spec import ProxySpec, engines_of
from gyre.rollout.facts import FactEntry
from gyre.scheduler.messages import StopReason
from gyre.scheduler.replay import JOURNAL_EVENTS, plain_shape
from gyre.scheduler.scheduler import Scheduler
from gyre.storage.files import replace as replace_file
from gyre.types.errors import ConfigError, GyreError, TakenOver
from gyre.types.ids import ExecutionId
from gyre.types.protocols import Cluster
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
        self._folder = folder.absolute()
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
        self._has_begun = False
        self._is_over = False

    async def work(self) -> StopReason | None:
        """Why the run ended; None if it was asked to stop."""
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
            named.add_note(_left(self._folder))

    async def _work(
        self, stack: AsyncExitStack, stop_requested: asyncio.Event
    ) -> StopReason | None:
        config = self._run.config
        try:
            in_memory = config.cluster.kind == "local"
            places = run_dir.opened(self._folder, stack, in_memory=in_memory)
            journal, reading = self._open_journal(places)
            stack.enter_context(journal)
            replace_file(places.file, ("\n".join(as_toml(config)) + "\n").encode())
        except OSError as error:
            raise ConfigError(f"{self._folder}: cannot be written: {error}") from error
        found = self._recovered(places, reading)
        self._has_begun = found is not None
        is_over = found is not None and found.scheduler.stopped is not None
        before = _text(places.token)
        if reading is not None:
            await resume.kill_leftovers(places, proxy=found is None or is_over)
        await asyncio.to_thread(run_dir.remove_earlier, places)
        if found is not None and is_over:
            return found.scheduler.stopped
        try:
            # A stop that comes this early need not wait for what takes minutes to start.
            processes = await run_until(
                stop_requested.wait(), self._start(stack, places, found, before)
            )
            scheduler = Scheduler(self._run.shape) if found is None else found.scheduler
            loop = RunLoop(scheduler, journal, listeners=self._listeners, decided=self._decided)
            return await self._run_scheduler(stack, loop, processes, found, stop_requested)
        except Interrupted:
            self._is_over = True
            # This controller has not taken up what an earlier one left; it ends as by any stop.
            await stop.end_all(places, config.cluster, config.run.name)
            return None

    async def _start(
        self, stack: AsyncExitStack, places: RunDir, found: RecoveredState | None, before: str
    ) -> CellProcesses:
        """Every process that a run begins with, or goes on with."""
        config = self._run.config
        shards = config.proxy.shards
        session = await stack.enter_async_context(open_session(places))
        proxies = ProxyProcesses(places, session, shards=shards)
        processes = await CellProcesses.open(config, places, session, proxies, stack)
        plans = None if found is None else recorded_plans(places, shards)
        if found is None or plans is None:
            await processes.start(stack)
            await self._start_proxy(stack, processes)
        else:
            plans = [_reached(plan, processes.cluster) for plan in plans]
            await proxies.take_over(plans, before=before, now=_text(places.token))
            stack.push_async_callback(self._stop_proxy, proxies)
            processes.config = replace(config, proxy=plans[0].proxy)
            processes.recall(stack, [(engine.name, engine.url) for engine in engines_of(plans[0])])
        return processes

    # What there was

    def _open_journal(self, places: RunDir) -> tuple[Journal, JournalContents | None]:
        config = self._run.config
        if self._resumes:
            return Journal.resume(places.journal, at=time.time(), kinds=JOURNAL_EVENTS)
        header = Header(
            run=config.run.name,
            seed=config.run.seed,
            started_at=time.time(),
            shape=plain_shape(self._run.shape),
            notes={
                "model": config.model.name,
                "nodes_per_cell": config.cells.nodes,
                SETTINGS: fixed_settings(config),
            },
        )
        return Journal.create(places.journal, header, kinds=JOURNAL_EVENTS), None

    def _recovered(self, places: RunDir, reading: JournalContents | None) -> RecoveredState | None:
        """None of a run that has not begun."""
        if reading is None:
            return None
        whole = [
            checkpoint.version
            for checkpoint in checkpoint_store.listed(places.checkpoints)
            if checkpoint.has_optimizer
        ]
        # The one before the last, because the last may turn out to be damaged.
        since = whole[-2] if len(whole) > 1 else 0
        found = recover(self._run.shape, reading.facts(JOURNAL_EVENTS), since=since)
        return found if found.has_started else None

    # Processes

    async def _start_proxy(self, stack: AsyncExitStack, processes: CellProcesses) -> None:
        cells = [cell.client for cell in processes.cells.values()]
        window = min(await asyncio.gather(*(cell.context_tokens() for cell in cells)))
        plan = proxy_plan(
            processes.config,
            processes.places,
            engines=tuple(f"gyre={cell.url}" for cell in cells),
            context_tokens=window,
        )
        plan = _reached(plan, processes.cluster)
        # Agent programs get the window as the cells report it.
        processes.config = replace(processes.config, proxy=plan.proxy)
        await processes.proxies.start(plan)
        stack.push_async_callback(self._stop_proxy, processes.proxies)

    async def _stop_proxy(self, proxies: ProxyProcesses) -> None:
        if self._leaves_nothing:
            await proxies.stop()

    @property
    def _leaves_nothing(self) -> bool:
        """No later controller has to go on with the executions and proxies there are."""
        return self._is_over or not self._has_begun

    # The run

    async def _run_scheduler(
        self,
        stack: AsyncExitStack,
        loop: RunLoop,
        processes: CellProcesses,
        found: RecoveredState | None,
        stop_requested: asyncio.Event,
    ) -> StopReason | None:
        on, endpoint = _open_facts_server(stack, processes)
        published = None if found is None else resume.published(found, processes.places)

        async def build() -> Components:
            versions = await processes.proxies.ask(lambda proxy: proxy.routes_version())
            return await build_components(
                loop,
                processes,
                published=published,
                routes_version=max(versions),
                facts_endpoint=endpoint,
                tasks=self._tasks,
                held_out=self._held_out,
            )

        parts = await run_until(stop_requested.wait(), build())
        loop.attach(parts.executor)
        if found is not None:
            resume.restore(found, parts)

        async def receive(execution: ExecutionId, entry: FactEntry) -> None:
            for supervisors in parts.supervisors:
                await supervisors.receive(execution, entry)

        async with serving(FactsServer(endpoint.token, receive), on):
            try:
                return await self._until_over(loop, processes, parts, found, stop_requested)
            finally:
                if self._leaves_nothing:
                    # A run that is asked to stop may be resumed, and any other end is for good.
                    for_good = loop.stopped.done() and loop.stopped.result() is not None
                    await asyncio.gather(
                        *(supervisors.end(for_good=for_good) for supervisors in parts.supervisors)
                    )

    async def _until_over(
        self,
        loop: RunLoop,
        processes: CellProcesses,
        parts: Components,
        found: RecoveredState | None,
        stop_requested: asyncio.Event,
    ) -> StopReason | None:
        work = [parts.coordinator.work(), parts.routes.work(), self._tick_on(loop)]
        work += [supervisors.look_after() for supervisors in parts.supervisors]
        work.append(processes.proxies.watch(loop, again=parts.routes.again))
        if self._usage is not None:
            work.append(self._usage.work(loop, lambda: _roots(processes)))
        async with loop.run():
            for service in work:
                loop.spawn(service)
            if found is None:
                with suppress(Interrupted):
                    await run_until(stop_requested.wait(), begin_run(loop, parts))
            else:
                resume.continue_run(loop, found, parts)
            self._has_begun = True
            for service in (parts.health.work(), parts.slow_engines.work()):
                loop.spawn(service)
            loop.spawn(_stop_when(stop_requested, loop))
            reason = await loop.stopped
            loop.record(RunEnded(reason=TOLD if reason is None else reason.value))
            # A full disk does not keep a user from stopping a run.
            with suppress(TimeoutError):
                async with asyncio.timeout(SETTLE_S if reason is None else None):
                    await loop.settled()
            self._is_over = True
        return reason

    async def _tick_on(self, loop: RunLoop) -> None:
        while True:
            await asyncio.sleep(BEAT_S)
            if self._tick is not None:
                self._tick(loop.now)


async def _stop_when(stop_requested: asyncio.Event, loop: RunLoop) -> None:
    await stop_requested.wait()
    loop.stop(None)


def _open_facts_server(
    stack: AsyncExitStack, processes: CellProcesses
) -> tuple[socket, FactsEndpoint]:
    """Where it was, so that supervisors find it; else they are read from the disk."""
    path, host = processes.places.facts_endpoint, processes.cluster.here.host
    found = facts_server.recorded_endpoint(path)
    try:
        on = listener(host, found.port)
    except ConfigError:
        on = listener(host, 0)
    stack.callback(on.close)
    endpoint = FactsEndpoint(port=on.getsockname()[1], token=found.token)
    facts_server.note(path, endpoint)
    return on, endpoint


def _reached(plan: ProxySpec, cluster: Cluster) -> ProxySpec:
    """It listens where agent programs of other machines reach it, if there are any."""
    if cluster.is_shared:
        return plan
    return replace(plan, proxy=replace(plan.proxy, host=cluster.here.host))


def _roots(processes: CellProcesses) -> ProcessRoots:
    return ProcessRoots(
        cells=processes.pids,
        proxies=processes.proxies.pids,
        fork_clients=processes.supervisors.pids,
        attempts=processes.places.attempts,
    )


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
