"""Builds the controller's components and wires them."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from gyre.aio import Spawn
from gyre.batching.task_sampler import TaskSampler
from gyre.cell.client import CellClient
from gyre.config.run_config import RunConfig
from gyre.controller.cells.checkpointer import Checkpointer
from gyre.controller.cells.health import HealthMonitor, SlowEngineDetector
from gyre.controller.cells.processes import CellProcesses
from gyre.controller.cells.restarts import CellRestarter
from gyre.controller.cells.transitions import RoleTransitions
from gyre.controller.command_executor import CommandExecutor
from gyre.controller.executions.facts_server import PATH, FactsEndpoint
from gyre.controller.executions.group_executions import GroupExecutions
from gyre.controller.executions.held_out_eval import HeldOutEval
from gyre.controller.executions.supervisors import OrderOf, Supervisors
from gyre.controller.process_specs import order_for, packer_for
from gyre.controller.routes import RouteTables
from gyre.controller.training.batches import TrainingSettings
from gyre.controller.training.coordinator import TrainingCoordinator
from gyre.model.checkpoint_store import Checkpoint
from gyre.proxy.client import ShardedProxyClient
from gyre.rollout.spec import ExecutionSpec
from gyre.scheduler.config import SchedulerConfig
from gyre.scheduler.messages import CellDied, RunStarted, StopReason
from gyre.scheduler.scheduler import Scheduler
from gyre.types.ids import CellId, ExecutionId
from gyre.types.places import TaskSource
from gyre.types.tasks import Task


class TrainingComponents:
    """The training coordinator with the checkpointer, the health monitor and the restarter."""

    def __init__(
        self,
        cell_processes: CellProcesses,
        shape: SchedulerConfig,
        *,
        record: Callable[[Any], None],
        settled: Callable[[], Awaitable[None]],
        clock: Callable[[], float],
        spawn: Spawn,
    ) -> None:
        """The cell processes have been started."""
        config = cell_processes.config
        schedule = config.schedule
        self._cells: Mapping[int, CellClient] = cell_processes.cells
        self._num_cells = cell_processes.num_cells
        self._cells_serve = shape.placement.cells_serve
        self._publish_s = schedule.publish_s
        self._offers = config.transport.kind in ("tcp", "mooncake")
        self._record = record = report_death_once(record, cell_processes.cells)
        self._settled = settled
        self.coordinator = TrainingCoordinator(
            cell_processes.cells,
            settings_of(config, shape),
            packer=packer_for(config, cell_processes.places),
            record=record,
            settled=settled,
            stepped=lambda version: self.checkpointer.begin(version),
            clock=clock,
            spawn=spawn,
        )
        self.checkpointer = Checkpointer(
            cell_processes.cells,
            folder=cell_processes.places.checkpoints,
            section=config.checkpoint,
            record=record,
            covered=self.coordinator.forget,
            spawn=spawn,
        )
        self.health = HealthMonitor(
            cell_processes.cells,
            self.coordinator,
            num_cells=cell_processes.num_cells,
            lease_s=schedule.lease_s,
            drain_s=schedule.publish_s + schedule.lease_s,
            ended=cell_processes.ended,
            end=cell_processes.end,
            record=record,
            clock=clock,
            spawn=spawn,
        )
        self.restarter = CellRestarter(
            cell_processes.cells,
            cell_processes,
            self.coordinator,
            self.checkpointer,
            lease_s=schedule.lease_s,
            record=record,
            watch=self.health.follow,
            clock=clock,
        )

    async def open(
        self,
        routes: RouteTables,
        proxy: ShardedProxyClient,
        published: Checkpoint | None = None,
        *,
        is_home: Callable[[int], bool],
    ) -> RoleTransitions:
        """Roles can change; the weights that all cells begin with are a version like any other."""
        self.health.is_home = is_home
        if published is None:
            published, _ = await self.checkpointer.saved(0)
        self.checkpointer.publish(published)
        self.checkpointer.acknowledged(published.version)
        self.health.slow_engines = SlowEngineDetector(self._cells, proxy, record=self._record)
        return RoleTransitions(
            self._cells,
            self.coordinator,
            routes,
            proxy,
            self.checkpointer,
            self.restarter,
            publish_s=self._publish_s,
            offers=self._offers,
            record=self._record,
            settled=self._settled,
        )

    async def begin(self) -> None:
        """The run starts; cells that never serve train from now on (SPEC 9)."""
        order = list(range(self._num_cells))
        # Groups of cells are built before they are needed; one that cannot be is built then.
        meets = (self._cells[cell].form_groups(0, order) for cell in order)
        await asyncio.gather(*meets, return_exceptions=True)
        entered: dict[int, object] = {}
        if not self._cells_serve:
            enters = (self._cells[cell].enter() for cell in order)
            entered.update(enumerate(await asyncio.gather(*enters, return_exceptions=True)))
        self._record(RunStarted())
        for cell, answer in entered.items():
            if isinstance(answer, BaseException):
                self._record(CellDied(cell=CellId(cell)))
            else:
                self.coordinator.join(cell)
        self.follow()

    def follow(self) -> None:
        """Every process is watched from now on."""
        for cell in self._cells:
            self.health.follow(cell)


def settings_of(config: RunConfig, shape: SchedulerConfig) -> TrainingSettings:
    return TrainingSettings(
        groups_per_batch=shape.groups_per_batch,
        batch_executions=shape.groups_per_batch * shape.executions_per_group,
        scored_first=config.cells.stages > 1,
        lease_s=config.schedule.lease_s,
        join_s=config.schedule.join_s,
        group_s=config.schedule.group_s,
    )


def report_death_once(
    record: Callable[[Any], None], cells: Mapping[int, CellClient]
) -> Callable[[Any], None]:
    """Several components notice that a process is gone; only the first report is recorded."""
    reported: dict[int, CellClient] = {}

    def record_once(fact: Any) -> None:
        if isinstance(fact, CellDied):
            if reported.get(fact.cell) is cells[fact.cell]:
                return
            reported[fact.cell] = cells[fact.cell]
        record(fact)

    return record_once


@dataclass(frozen=True, slots=True, kw_only=True)
class Components:
    """The controller's components, wired: each carries out some of the scheduler's commands."""

    training_components: TrainingComponents
    routes: RouteTables
    attempts: GroupExecutions
    evaluations: HeldOutEval | None
    """None where nothing is held out."""
    transitions: RoleTransitions
    executor: CommandExecutor

    @property
    def coordinator(self) -> TrainingCoordinator:
        return self.training_components.coordinator

    @property
    def executions(self) -> list[Supervisors | HeldOutEval]:
        """The components that look after executions."""
        found: list[Supervisors | HeldOutEval] = [self.attempts.supervisors]
        return found if self.evaluations is None else [*found, self.evaluations]


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerContext:
    """What components know of the controller they belong to."""

    record: Callable[[Any], None]
    settled: Callable[[], Awaitable[None]]
    """Waits until all recorded facts have been decided on."""
    clock: Callable[[], float]
    spawn: Spawn
    stop: Callable[[StopReason], None]


class ComponentBuilder:
    """Makes the components of one run and gives each the others that it needs."""

    def __init__(
        self,
        cell_processes: CellProcesses,
        proxy: ShardedProxyClient,
        shape: SchedulerConfig,
        context: ControllerContext,
        *,
        facts_endpoint: FactsEndpoint,
        tasks: TaskSource,
        held_out: TaskSource | None,
    ) -> None:
        self._cell_processes = cell_processes
        self._proxy = proxy
        self._shape = shape
        self._context = context
        self._facts_endpoint = facts_endpoint
        self._tasks = tasks
        self._held_out = held_out

    async def parts(
        self, scheduler: Scheduler, published: Checkpoint | None, *, routes_version: int
    ) -> Components:
        """For a run of which this is published; None of one that begins.

        The proxy has carried out orders about routes up to this one, and refuses older ones.
        """
        cells, context = self._cell_processes.cells, self._context
        training_components = TrainingComponents(
            self._cell_processes,
            self._shape,
            record=context.record,
            settled=context.settled,
            clock=context.clock,
            spawn=context.spawn,
        )
        routes = RouteTables(
            self._proxy.shards, lambda engine: cells[engine].engine, version=routes_version
        )
        transitions = await training_components.open(
            routes, self._proxy, published, is_home=scheduler.is_home
        )
        attempts, evaluations = self._attempts(), self._evaluations()
        executor = CommandExecutor(
            scheduler,
            attempts,
            training_components.coordinator,
            transitions,
            routes,
            evaluations=evaluations,
            spawn=context.spawn,
            stop=context.stop,
        )
        return Components(
            training_components=training_components,
            routes=routes,
            attempts=attempts,
            evaluations=evaluations,
            transitions=transitions,
            executor=executor,
        )

    def _attempts(self) -> GroupExecutions:
        return GroupExecutions(
            self._cell_processes.places.attempts,
            self._tasks,
            TaskSampler(len(self._tasks), seed=self._cell_processes.config.run.seed),
            lambda terminated, closed, lost: Supervisors(
                self._proxy,
                self._cell_processes.supervisors,
                order_of=self._order_of(),
                facts_token=self._facts_endpoint.token,
                terminated=terminated,
                closed=closed,
                spawn=self._context.spawn,
                lost=lost,
            ),
            record=self._context.record,
        )

    def _evaluations(self) -> HeldOutEval | None:
        if self._held_out is None:
            return None
        config = self._cell_processes.config
        return HeldOutEval(
            self._cell_processes.places.run,
            self._held_out,
            self._proxy,
            self._cell_processes.supervisors,
            every=config.evaluation.every,
            last=config.schedule.steps,
            order_of=self._order_of(),
            facts_token=self._facts_endpoint.token,
            record=self._context.record,
            spawn=self._context.spawn,
        )

    def _order_of(self) -> OrderOf:
        facts_url = (
            f"http://{self._cell_processes.cluster.here.host}:{self._facts_endpoint.port}{PATH}"
        )

        def order_of(name: ExecutionId, task: Task, url: str) -> ExecutionSpec:
            return order_for(self._cell_processes.config, name, task, url=url, facts_url=facts_url)

        return order_of
