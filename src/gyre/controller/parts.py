"""The parts of a controller, joined: who acts on executions, on cells and on routes."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from gyre.aio.chores import Spawn
from gyre.batching.task_sampler import Queries
from gyre.controller.cells.processes import Staff
from gyre.controller.cells.transitions import Switching
from gyre.controller.command_executor import Hands
from gyre.controller.executions.facts_server import PATH, Whereabouts
from gyre.controller.executions.group_executions import Attempts
from gyre.controller.executions.held_out_eval import Evaluations
from gyre.controller.executions.supervisors import OrderOf, Supervisors
from gyre.controller.process_specs import order_for
from gyre.controller.routing import RouteTables
from gyre.controller.training.hall import Hall
from gyre.controller.workshop import Workshop
from gyre.model.checkpoint_store import Checkpoint
from gyre.proxy.sharded import Proxies
from gyre.rollout.spec import Order
from gyre.scheduler.config import Shape
from gyre.scheduler.messages import StopReason
from gyre.scheduler.scheduler import Scheduler
from gyre.types.ids import ExecutionId
from gyre.types.places import TaskSource
from gyre.types.tasks import Task


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """Everybody who acts."""

    workshop: Workshop
    routes: RouteTables
    attempts: Attempts
    evaluations: Evaluations | None
    """None where nothing is held out."""
    switching: Switching
    hands: Hands

    @property
    def hall(self) -> Hall:
        return self.workshop.hall

    @property
    def executions(self) -> list[Supervisors | Evaluations]:
        """Who looks after executions."""
        found: list[Supervisors | Evaluations] = [self.attempts.supervisors]
        return found if self.evaluations is None else [*found, self.evaluations]


@dataclass(frozen=True, slots=True, kw_only=True)
class Around:
    """What the parts are told of the controller they belong to."""

    hear: Callable[[Any], None]
    settled: Callable[[], Awaitable[None]]
    """Waits until all that was heard has been decided on."""
    clock: Callable[[], float]
    spawn: Spawn
    stop: Callable[[StopReason], None]


class Joining:
    """Makes the parts of one run, each knowing the others that it needs."""

    def __init__(
        self,
        staff: Staff,
        proxy: Proxies,
        shape: Shape,
        around: Around,
        *,
        desk: Whereabouts,
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
    ) -> Parts:
        """For a run of which this is published; None of one that begins.

        The proxy has carried out orders about routes up to this one, and refuses older ones.
        """
        cells, around = self._staff.cells, self._around
        workshop = Workshop(
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
        hands = Hands(
            scheduler,
            attempts,
            workshop.hall,
            switching,
            routes,
            evaluations=evaluations,
            spawn=around.spawn,
            stop=around.stop,
        )
        return Parts(
            workshop=workshop,
            routes=routes,
            attempts=attempts,
            evaluations=evaluations,
            switching=switching,
            hands=hands,
        )

    def _attempts(self) -> Attempts:
        return Attempts(
            self._staff.places.attempts,
            self._tasks,
            Queries(len(self._tasks), seed=self._staff.config.run.seed),
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

    def _evaluations(self) -> Evaluations | None:
        if self._held_out is None:
            return None
        config = self._staff.config
        return Evaluations(
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

        def order_of(name: ExecutionId, task: Task, url: str) -> Order:
            return order_for(self._staff.config, name, task, url=url, facts_url=facts_url)

        return order_of
