"""The controller: starts every process of a run, hosts the scheduler, and ends what it started."""

import asyncio
import secrets
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from gyre.config.show import as_toml
from gyre.journal.entries import Header
from gyre.journal.writing import Journal
from gyre.plan.cells import CORE
from gyre.plan.messages import CellDied, CellId, RunStarted, StopReason
from gyre.plan.replay import EVENTS, plain_shape
from gyre.plan.scheduler import Scheduler
from gyre.rollout.facts import Entry
from gyre.rollout.order import Order
from gyre.run.attempts import Attempts
from gyre.run.cells import CellClient
from gyre.run.desk import PATH, Desk
from gyre.run.evaluations import Evaluations
from gyre.run.hall import Hall
from gyre.run.host import Decided, Host, Listener
from gyre.run.listen import listener, serving, told_to_stop
from gyre.run.obeying import Hands
from gyre.run.plans import (
    Places,
    harness_for,
    open_tasks,
    order_for,
    packer_for,
)
from gyre.run.proxied import ProxyClient
from gyre.run.routing import RouteTable
from gyre.run.runfile import RunFile
from gyre.run.staff import Staff
from gyre.run.supervisors import OrderOf, Supervisors
from gyre.run.switching import Switching, Weights
from gyre.stream.queries import Queries
from gyre.words.errors import CellGone
from gyre.words.events import FACTS_FOR_PEOPLE, RunEnded
from gyre.words.ids import ExecutionId
from gyre.words.run_sections import RunConfig
from gyre.words.tasks import Task

KINDS = (*EVENTS, *FACTS_FOR_PEOPLE)
"""What a live run's journal holds."""
HOST = "127.0.0.1"
BEAT_S = 1.0
"""How often cells are asked how they are."""


class Controller:
    """One run, from its first process to its last."""

    def __init__(
        self,
        run: RunFile,
        folder: Path,
        *,
        listeners: Sequence[Listener] = (),
        tick: Callable[[float], None] | None = None,
        decided: Decided | None = None,
    ) -> None:
        """`tick` is called about once a second with the time of the run."""
        self._run = run
        self._listeners = listeners
        self._tick = tick
        self._decided = decided
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
        self._staff = Staff(run.config, folder)
        self._cells = self._staff.cells
        self._facts_token = secrets.token_urlsafe(32)
        self._spawned: set[asyncio.Task[None]] = set()
        self._host: Host
        self._hall: Hall
        self._group: asyncio.TaskGroup
        self._stopped: asyncio.Future[StopReason | None]

    async def work(self) -> StopReason | None:
        """Why the run ended; None when it was told to."""
        self._stopped = asyncio.get_running_loop().create_future()
        told = told_to_stop()
        async with AsyncExitStack() as stack:
            self._staff.prepare(stack)
            journal = stack.enter_context(self._journal())
            self._places.file.write_text("\n".join(as_toml(self._config)) + "\n")
            await self._staff.start(stack)
            self._cells = self._staff.cells
            return await self._host_run(journal, self._staff.proxy, told, stack)

    @property
    def _config(self) -> RunConfig:
        return self._staff.config

    @property
    def _places(self) -> Places:
        return self._staff.places

    def _journal(self) -> Journal:
        config = self._config
        header = Header(
            run=config.run.name,
            seed=config.run.seed,
            started_at=time.time(),
            shape=plain_shape(self._run.shape),
            notes={"model": config.model.name, "nodes_per_cell": config.cells.nodes},
        )
        return Journal.create(self._places.journal, header, kinds=KINDS)

    # The run

    async def _host_run(
        self, journal: Journal, proxy: ProxyClient, told: asyncio.Event, stack: AsyncExitStack
    ) -> StopReason | None:
        on = listener(HOST, 0)
        stack.callback(on.close)
        facts_url = f"http://{HOST}:{on.getsockname()[1]}{PATH}"
        scheduler = Scheduler(self._run.shape)
        routes = RouteTable(proxy, lambda engine: self._cells[engine].engine)
        self._hall = self._open_hall()
        attempts = self._open_attempts(proxy, facts_url)
        evaluations = self._open_evaluations(proxy, facts_url)
        hands = Hands(
            scheduler,
            attempts,
            self._hall,
            await self._open_switching(routes, proxy),
            routes,
            evaluations=evaluations,
            spawn=self._spawn,
            stop=self._stop,
        )
        self._host = Host(
            scheduler,
            journal,
            obey=hands.obey,
            listeners=(
                *self._listeners,
                *([] if evaluations is None else [evaluations.noticed]),
            ),
            decided=self._decided,
        )
        work = [self._host.work(), self._hall.work(), routes.work()]
        executions: list[Supervisors | Evaluations] = [attempts.supervisors]
        if evaluations is not None:
            executions.append(evaluations)
        work += [one.look_after() for one in executions]

        async def heard(execution: ExecutionId, entry: Entry) -> None:
            for one in executions:
                await one.heard(execution, entry)

        async with serving(Desk(self._facts_token, heard), on):
            try:
                return await self._until_over(told, work)
            finally:
                await asyncio.gather(*(one.end() for one in executions))

    def _open_hall(self) -> Hall:
        config, shape = self._config, self._run.shape
        return Hall(
            self._cells,
            groups_per_batch=shape.groups_per_batch,
            batch_executions=shape.groups_per_batch * shape.executions_per_group,
            lease_s=config.schedule.lease_s,
            join_s=config.schedule.join_s,
            scored_first=config.cells.stages > 1,
            packer=packer_for(config, self._places),
            hear=self._hear,
            settled=lambda: self._host.settled(),
            clock=lambda: self._host.now,
            spawn=self._spawn,
        )

    def _open_attempts(self, proxy: ProxyClient, facts_url: str) -> Attempts:
        return Attempts(
            self._places.attempts,
            self._tasks,
            Queries(len(self._tasks), seed=self._config.run.seed),
            lambda terminated, closed: Supervisors(
                proxy,
                self._staff.supervisors,
                order_of=self._order_of(facts_url),
                facts_token=self._facts_token,
                terminated=terminated,
                closed=closed,
                spawn=self._spawn,
            ),
            hear=self._hear,
        )

    def _order_of(self, facts_url: str) -> OrderOf:
        def order_of(name: ExecutionId, task: Task, url: str) -> Order:
            return order_for(self._config, name, task, url=url, facts_url=facts_url)

        return order_of

    def _open_evaluations(self, proxy: ProxyClient, facts_url: str) -> Evaluations | None:
        """None where nothing is held out."""
        config = self._config
        if self._held_out is None:
            return None
        return Evaluations(
            self._places.run,
            self._held_out,
            proxy,
            self._staff.supervisors,
            every=config.evaluation.every,
            last=config.schedule.steps,
            order_of=self._order_of(facts_url),
            facts_token=self._facts_token,
            hear=self._hear,
            spawn=self._spawn,
        )

    async def _open_switching(self, routes: RouteTable, proxy: ProxyClient) -> Switching:
        """What everybody begins with is a version like any other."""
        folder = self._places.weights / "v000000"
        saved = await self._cells[CORE].save(folder)
        return Switching(
            self._cells,
            self._hall,
            routes,
            proxy,
            folder=self._places.weights,
            first=Weights(version=0, folder=folder, digest=saved.digest),
            keep=self._config.checkpoint.keep,
            publish_s=self._config.schedule.publish_s,
            restart=self._restart,
            hear=self._hear,
        )

    async def _until_over(
        self, told: asyncio.Event, work: Sequence[Coroutine[Any, Any, None]]
    ) -> StopReason | None:
        async with asyncio.TaskGroup() as self._group:
            always = [self._group.create_task(one) for one in (*work, self._watch_cells())]
            always += [self._group.create_task(self._watch_process(one)) for one in self._cells]
            always.append(self._group.create_task(self._staff.watch_proxy()))
            await self._begin()
            always.append(self._group.create_task(self._wait_to_be_told(told)))
            reason = await self._stopped
            self._hear(RunEnded(reason="told" if reason is None else reason.value))
            await self._host.settled()
            for task in (*always, *self._spawned):
                task.cancel()
        return reason

    async def _begin(self) -> None:
        """Groups of cells are built; cells that never serve train from the start (SPEC 9)."""
        order = list(range(self._config.cells.count))
        await asyncio.gather(*(self._cells[one].meet(0, order) for one in order))
        if not self._run.shape.placement.cells_serve:
            await asyncio.gather(*(self._cells[one].enter() for one in order))
            for one in order:
                self._hall.join(one)
        self._hear(RunStarted())

    async def _restart(self, cell: int, weights: Weights) -> CellClient:
        client = await self._staff.restart(cell, weights)
        self._spawn(self._watch_process(cell))
        return client

    # Watching

    async def _watch_process(self, cell: int) -> None:
        """A process that ends by itself is a cell that died."""
        if await self._staff.ended(cell):
            self._hear(CellDied(cell=CellId(cell)))

    async def _watch_cells(self) -> None:
        """Leases last as long as cells answer (SPEC 3.2)."""
        while True:
            await asyncio.sleep(BEAT_S)
            if self._tick is not None:
                self._tick(self._host.now)
            await asyncio.gather(*(self._beat(cell) for cell in range(self._config.cells.count)))
            for cell in self._hall.silent():
                self._hear(CellDied(cell=CellId(cell)))

    async def _beat(self, cell: int) -> None:
        try:
            await self._cells[cell].health()
        except CellGone:
            return
        self._hall.beat(cell)

    def _hear(self, fact: Any) -> None:
        self._host.hear(fact)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        task = self._group.create_task(work)
        self._spawned.add(task)
        task.add_done_callback(self._spawned.discard)
        return task

    async def _wait_to_be_told(self, told: asyncio.Event) -> None:
        await told.wait()
        self._stop(None)

    def _stop(self, reason: StopReason | None) -> None:
        if not self._stopped.done():
            self._stopped.set_result(reason)
