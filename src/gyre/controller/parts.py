"""The parts of a controller, joined: who acts on executions, on cells and on routes."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from gyre.aio.chores import Spawn
from gyre.batching.task_sampler import TaskSampler
from gyre.controller.cells.processes import CellProcesses
from gyre.controller.cells.transitions import RoleTransitions
from gyre.controller.command_executor import CommandExecutor
from gyre.controller.executions.facts_server import PATH, FactsEndpoint
from gyre.controller.executions.group_executions import GroupExecutions
from gyre.controller.executions.held_out_eval import HeldOutEval
from gyre.controller.executions.supervisors import OrderOf, Supervisors
from gyre.controller.process_specs import order_for
from gyre.controller.routing import RouteTables
from gyre.controller.training.hall import TrainingCoordinator
from gyre.controller.workshop import TrainingComponents
from gyre.model.checkpoint_store import Checkpoint
from gyre.proxy.sharded import ShardedProxyClient
from gyre.rollout.spec import ExecutionSpec
from gyre.scheduler.config import SchedulerConfig
from gyre.scheduler.messages import StopReason
from gyre.scheduler.scheduler import Scheduler
from gyre.types.ids import ExecutionId
from gyre.types.places import TaskSource
from gyre.types.tasks import Task


@dataclass(frozen=True, slots=True, kw_only=True)
class Components:
    """Everybody who acts."""

    workshop: TrainingComponents
    routes: RouteTables
    attempts: GroupExecutions
    evaluations: HeldOutEval | None
    """None where nothing is held out."""
    switching: RoleTransitions
    hands: CommandExecutor

    @property
    def hall(self) -> TrainingCoordinator:
        return self.workshop.hall

    @property
    def executions(self) -> list[Supervisors | HeldOutEval]:
        """Who looks after executions."""
        found: list[Supervisors | HeldOutEval] = [self.attempts.supervisors]
        return found if self.evaluations is None else [*found, self.evaluations]


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerContext:
    """What the parts are told of the controller they belong to."""

    hear: Callable[[Any], None]
    settled: Callable[[], Awaitable[None]]
    """Waits until all that was heard has been decided on."""
    clock: Callable[[], float]
    spawn: Spawn
    stop: Callable[[StopReason], None]


class ComponentBuilder:
    """Makes the parts of one run, each knowing the others that it needs."""

    def __init__(
        self,
        staff: CellProcesses,
        proxy: ShardedProxyClient,
        shape: SchedulerConfig,
        around: ControllerContext,
        *,
        desk: FactsEndpoint,
        tasks: TaskSource,
        held_out: TaskSource | None,
        until_consumed: bool,
    ) -> None:
        """`until_consumed`: so long queries are out, and not only until their groups are ready."""
        self._staff = staff
        self._proxy = proxy
        self._shape = shape
        self._around = around
        self._desk = desk
        self._tasks = tasks
        self._held_out = held_out
        self._until_consumed = until_consumed

    async def parts(
        self, scheduler: Scheduler, published: Checkpoint | None, *, routes_version: int
    ) -> Components:
        """For a run of which this is published; None of one that begins.

        The proxy has carried out orders about routes up to this one, and refuses older ones.
        """
        cells, around = self._staff.cells, self._around
        workshop = TrainingComponents(
            self._staff,
            self._shape,
            hear=around.hear,
            settled=around.settled,
            clock=around.clock,
            spawn=around.spawn,
        )
        routes = RouteTables(
            self._proxy.shards, lambda engine: cells[engine].engine, version=routes_version
        )
        switching = await workshop.open(routes, self._proxy, published, is_home=scheduler.is_home)
        attempts, evaluations = self._attempts(), self._evaluations()
        hands = CommandExecutor(
            scheduler,
            attempts,
            workshop.hall,
            switching,
            routes,
            evaluations=evaluations,
            spawn=around.spawn,
            stop=around.stop,
        )
        return Components(
            workshop=workshop,
            routes=routes,
            attempts=attempts,
            evaluations=evaluations,
            switching=switching,
            hands=hands,
        )

    def _attempts(self) -> GroupExecutions:
        return GroupExecutions(
            self._staff.places.attempts,
            self._tasks,
            TaskSampler(len(self._tasks), seed=self._staff.config.run.seed),
            lambda terminated, closed, lost: Supervisors(
                self._proxy,
                self._staff.supervisors,
                order_of=self._order_of(),
                facts_token=self._desk.token,
                terminated=terminated,
                closed=closed,
                spawn=self._around.spawn,
                lost=lost,
            ),
            hear=self._around.hear,
            until_consumed=self._until_consumed,
        )

    def _evaluations(self) -> HeldOutEval | None:
        if self._held_out is None:
            return None
        config = self._staff.config
        return HeldOutEval(
            self._staff.places.run,
            self._held_out,
            self._proxy,
            self._staff.supervisors,
            every=config.evaluation.every,
            last=config.schedule.steps,
            order_of=self._order_of(),
            facts_token=self._desk.token,
            hear=self._around.hear,
            spawn=self._around.spawn,
        )

    def _order_of(self) -> OrderOf:
        facts_url = f"http://{self._staff.cluster.here.host}:{self._desk.port}{PATH}"

        def order_of(name: ExecutionId, task: Task, url: str) -> ExecutionSpec:
            return order_for(self._staff.config, name, task, url=url, facts_url=facts_url)

        return order_of
