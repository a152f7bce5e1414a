"""Builds the controller's components, each with the others that it needs, and starts the run."""

import asyncio
from dataclasses import dataclass

from gyre.batching.task_sampler import TaskSampler
from gyre.config.run_config import RunConfig
from gyre.controller.cells.cell import RunCells
from gyre.controller.cells.checkpointer import Checkpointer
from gyre.controller.cells.health import HealthMonitor, SlowEngineDetector
from gyre.controller.cells.processes import CellProcesses
from gyre.controller.cells.transitions import CellRestarter, RoleTransitions
from gyre.controller.command_executor import CommandExecutor
from gyre.controller.executions.facts_server import PATH, FactsEndpoint
from gyre.controller.executions.group_executions import GroupExecutions
from gyre.controller.executions.held_out_eval import HeldOutEval
from gyre.controller.executions.supervisors import Supervisors
from gyre.controller.process_specs import order_for, packer_for
from gyre.controller.routes import RouteTables
from gyre.controller.run_loop import RunLoop
from gyre.controller.training.coordinator import TrainingCoordinator, TrainingSettings
from gyre.model.checkpoint_store import Checkpoint
from gyre.rollout.spec import ExecutionSpec
from gyre.scheduler.config import SchedulerConfig
from gyre.scheduler.messages import RunStarted
from gyre.types.ids import ExecutionId
from gyre.types.places import TaskSource
from gyre.types.tasks import Task


@dataclass(frozen=True, slots=True, kw_only=True)
class Components:
    """The controller's components, wired: each carries out some of the scheduler's commands."""

    cells: RunCells
    coordinator: TrainingCoordinator
    health: HealthMonitor
    slow_engines: SlowEngineDetector
    transitions: RoleTransitions
    routes: RouteTables
    attempts: GroupExecutions
    evaluations: HeldOutEval | None
    """None where nothing is held out."""
    executor: CommandExecutor

    @property
    def supervisors(self) -> list[Supervisors]:
        """Those of all executions."""
        found = [self.attempts.supervisors]
        return found if self.evaluations is None else [*found, self.evaluations.supervisors]


async def build_components(
    loop: RunLoop,
    cell_processes: CellProcesses,
    *,
    published: Checkpoint | None,
    routes_version: int,
    facts_endpoint: FactsEndpoint,
    tasks: TaskSource,
    held_out: TaskSource | None,
) -> Components:
    """For a run of which `published` is published; None of one that begins.

    The proxy has carried out orders about routes up to `routes_version`, and refuses older ones.
    """
    config, places, cells = cell_processes.config, cell_processes.places, cell_processes.cells
    schedule, scheduler, proxy = config.schedule, loop.scheduler, cell_processes.proxies.client
    checkpointer = Checkpointer(loop, cells, folder=places.checkpoints, section=config.checkpoint)
    if published is None:
        # The weights that all cells begin with are a version like any other.
        published, _ = await checkpointer.saved(0)
    checkpointer.publish(published)
    checkpointer.acknowledged(published.version)
    coordinator = TrainingCoordinator(
        loop,
        cells,
        checkpointer,
        training_settings(config, scheduler.shape),
        packer_for(config, places),
    )
    health = HealthMonitor(
        loop,
        scheduler,
        cells,
        cell_processes,
        coordinator,
        lease_s=schedule.lease_s,
        drain_s=schedule.publish_s + schedule.lease_s,
    )
    restarter = CellRestarter(
        loop, cell_processes, coordinator, checkpointer, lease_s=schedule.lease_s
    )
    names = [cell.client.engine for cell in cells.values()]
    routes = RouteTables(proxy.shards, names, version=routes_version)
    transitions = RoleTransitions(
        loop,
        cells,
        coordinator,
        routes,
        proxy,
        checkpointer,
        restarter,
        health,
        publish_s=schedule.publish_s,
        offers=config.transport.kind in ("tcp", "mooncake"),
    )
    attempts, evaluations = _executions(loop, cell_processes, facts_endpoint, tasks, held_out)
    return Components(
        cells=cells,
        coordinator=coordinator,
        health=health,
        slow_engines=SlowEngineDetector(loop, cells, proxy),
        transitions=transitions,
        routes=routes,
        attempts=attempts,
        evaluations=evaluations,
        executor=CommandExecutor(
            loop, scheduler, attempts, coordinator, transitions, routes, evaluations
        ),
    )


def _executions(
    loop: RunLoop,
    cell_processes: CellProcesses,
    endpoint: FactsEndpoint,
    tasks: TaskSource,
    held_out: TaskSource | None,
) -> tuple[GroupExecutions, HeldOutEval | None]:
    config, places = cell_processes.config, cell_processes.places
    facts_url = f"http://{cell_processes.cluster.here.host}:{endpoint.port}{PATH}"

    def order_of(name: ExecutionId, task: Task, url: str) -> ExecutionSpec:
        return order_for(config, name, task, url=url, facts_url=facts_url)

    def supervisors() -> Supervisors:
        return Supervisors(
            cell_processes.proxies.client,
            cell_processes.supervisors,
            order_of=order_of,
            facts_token=endpoint.token,
            spawn=loop.spawn,
        )

    queries = TaskSampler(len(tasks), seed=config.run.seed)
    attempts = GroupExecutions(loop, places.attempts, tasks, queries, supervisors())
    if held_out is None:
        return attempts, None
    every, last = config.evaluation.every, config.schedule.steps
    return attempts, HeldOutEval(loop, places.run, held_out, supervisors(), every=every, last=last)


def training_settings(config: RunConfig, shape: SchedulerConfig) -> TrainingSettings:
    return TrainingSettings(
        groups_per_batch=shape.groups_per_batch,
        batch_executions=shape.groups_per_batch * shape.executions_per_group,
        scored_first=config.cells.stages > 1,
        lease_s=config.schedule.lease_s,
        join_s=config.schedule.join_s,
        group_s=config.schedule.group_s,
    )


async def begin_run(loop: RunLoop, parts: Components) -> None:
    """The run starts; cells that never serve train from now on (SPEC 9)."""
    shape, cells = loop.scheduler.shape, parts.cells
    order = list(range(shape.num_cells))
    # Groups of cells are built before they are needed; one that cannot be is built then.
    meets = (cells[cell].client.form_groups(0, order) for cell in order)
    await asyncio.gather(*meets, return_exceptions=True)
    entered: dict[int, object] = {}
    if not shape.placement.cells_serve:
        enters = (cells[cell].client.enter() for cell in order)
        entered.update(enumerate(await asyncio.gather(*enters, return_exceptions=True)))
    loop.record(RunStarted())
    for cell, answer in entered.items():
        if isinstance(answer, BaseException):
            cells[cell].report_death(cells[cell].generation, loop)
        else:
            parts.coordinator.join(cells[cell])
    for one in cells.values():
        # Every process is watched from now on.
        parts.health.follow(one)
