"""All that cells do for a run, put together: claims, updates, checkpoints, roles and repair."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from gyre.aio.chores import Spawn
from gyre.cell.client import CellClient
from gyre.config.run_sections import RunConfig
from gyre.controller.cells.checkpointer import Checkpointer
from gyre.controller.cells.pacing import SlowEngineDetector
from gyre.controller.cells.processes import CellProcesses
from gyre.controller.cells.restarts import CellRestarter
from gyre.controller.cells.transitions import RoleTransitions
from gyre.controller.cells.watching import HealthMonitor
from gyre.controller.process_specs import packer_for
from gyre.controller.routing import RouteTables
from gyre.controller.training.batches import TrainingSettings
from gyre.controller.training.hall import TrainingCoordinator
from gyre.model.checkpoint_store import Checkpoint
from gyre.proxy.sharded import ShardedProxyClient
from gyre.scheduler.config import SchedulerConfig
from gyre.scheduler.messages import CellDied, RunStarted
from gyre.types.ids import CellId


class TrainingComponents:
    """One run's hall with whoever keeps its weights and its cells alive."""

    def __init__(
        self,
        staff: CellProcesses,
        shape: SchedulerConfig,
        *,
        hear: Callable[[Any], None],
        settled: Callable[[], Awaitable[None]],
        clock: Callable[[], float],
        spawn: Spawn,
    ) -> None:
        """The staff has started its cells."""
        config = staff.config
        schedule = config.schedule
        self._cells: Mapping[int, CellClient] = staff.cells
        self._num_cells = staff.num_cells
        self._cells_serve = shape.placement.cells_serve
        self._publish_s = schedule.publish_s
        self._offers = config.transport.kind in ("tcp", "mooncake")
        self._hear = hear = report_death_once(hear, staff.cells)
        self._settled = settled
        self.hall = TrainingCoordinator(
            staff.cells,
            terms_of(config, shape),
            packer=packer_for(config, staff.places),
            hear=hear,
            settled=settled,
            stepped=lambda version: self.keeper.begin(version),
            clock=clock,
            spawn=spawn,
        )
        self.keeper = Checkpointer(
            staff.cells,
            folder=staff.places.checkpoints,
            section=config.checkpoint,
            hear=hear,
            covered=self.hall.forget,
            spawn=spawn,
        )
        self.watch = HealthMonitor(
            staff.cells,
            self.hall,
            num_cells=staff.num_cells,
            lease_s=schedule.lease_s,
            drain_s=schedule.publish_s + schedule.lease_s,
            ended=staff.ended,
            end=staff.end,
            hear=hear,
            clock=clock,
            spawn=spawn,
        )
        self.reviving = CellRestarter(
            staff.cells,
            staff,
            self.hall,
            self.keeper,
            lease_s=schedule.lease_s,
            hear=hear,
            watch=self.watch.follow,
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
        """Roles can change; what everybody begins with is a version like any other."""
        self.watch.is_home = is_home
        if published is None:
            published, _ = await self.keeper.saved(0)
        self.keeper.publish(published)
        self.keeper.acknowledged(published.version)
        self.watch.paces = SlowEngineDetector(self._cells, proxy, hear=self._hear)
        return RoleTransitions(
            self._cells,
            self.hall,
            routes,
            proxy,
            self.keeper,
            self.reviving,
            publish_s=self._publish_s,
            offers=self._offers,
            hear=self._hear,
            settled=self._settled,
        )

    async def begin(self) -> None:
        """The run starts; cells that never serve train from now on (SPEC 9)."""
        order = list(range(self._num_cells))
        # Groups of cells are built before they are needed; one that cannot be is built then.
        meets = (self._cells[one].form_groups(0, order) for one in order)
        await asyncio.gather(*meets, return_exceptions=True)
        entered: dict[int, object] = {}
        if not self._cells_serve:
            enters = (self._cells[one].enter() for one in order)
            entered.update(enumerate(await asyncio.gather(*enters, return_exceptions=True)))
        self._hear(RunStarted())
        for cell, answer in entered.items():
            if isinstance(answer, BaseException):
                self._hear(CellDied(cell=CellId(cell)))
            else:
                self.hall.join(cell)
        self.follow()

    def follow(self) -> None:
        """Every process is watched from now on."""
        for cell in self._cells:
            self.watch.follow(cell)


def terms_of(config: RunConfig, shape: SchedulerConfig) -> TrainingSettings:
    return TrainingSettings(
        groups_per_batch=shape.groups_per_batch,
        batch_executions=shape.groups_per_batch * shape.executions_per_group,
        scored_first=config.cells.stages > 1,
        lease_s=config.schedule.lease_s,
        join_s=config.schedule.join_s,
        group_s=config.schedule.group_s,
    )


def report_death_once(
    hear: Callable[[Any], None], cells: Mapping[int, CellClient]
) -> Callable[[Any], None]:
    """Several notice that a process is gone, and the first of them is heard."""
    told: dict[int, CellClient] = {}

    def heard(fact: Any) -> None:
        if isinstance(fact, CellDied):
            if told.get(fact.cell) is cells[fact.cell]:
                return
            told[fact.cell] = cells[fact.cell]
        hear(fact)

    return heard
