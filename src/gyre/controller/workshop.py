"""All that cells do for a run, put together: claims, updates, checkpoints, roles and repair."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from gyre.aio.chores import Spawn
from gyre.cell.client import CellClient
from gyre.config.run_sections import RunConfig
from gyre.controller.cells.checkpointer import Keeper
from gyre.controller.cells.pacing import Pacing
from gyre.controller.cells.processes import Staff
from gyre.controller.cells.restarts import Reviving
from gyre.controller.cells.transitions import Switching
from gyre.controller.cells.watching import Watch
from gyre.controller.process_specs import packer_for
from gyre.controller.routing import RouteTables
from gyre.controller.training.batches import Terms
from gyre.controller.training.hall import Hall
from gyre.model.checkpoint_store import Checkpoint
from gyre.proxy.sharded import Proxies
from gyre.scheduler.config import Shape
from gyre.scheduler.messages import CellDied, RunStarted
from gyre.types.ids import CellId


class Workshop:
    """One run's hall with whoever keeps its weights and its cells alive."""

    def __init__(
        self,
        staff: Staff,
        shape: Shape,
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
        self._hear = hear = deaths_once(hear, staff.cells)
        self._settled = settled
        self.hall = Hall(
            staff.cells,
            terms_of(config, shape),
            packer=packer_for(config, staff.places),
            hear=hear,
            settled=settled,
            stepped=lambda version: self.keeper.begin(version),
            clock=clock,
            spawn=spawn,
        )
        self.keeper = Keeper(
            staff.cells,
            folder=staff.places.checkpoints,
            section=config.checkpoint,
            hear=hear,
            covered=self.hall.forget,
            spawn=spawn,
        )
        self.watch = Watch(
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
        self.reviving = Reviving(
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
        proxy: Proxies,
        published: Checkpoint | None = None,
        *,
        is_home: Callable[[int], bool],
    ) -> Switching:
        """Roles can change; what everybody begins with is a version like any other."""
        self.watch.is_home = is_home
        if published is None:
            published, _ = await self.keeper.saved(0)
        self.keeper.publish(published)
        self.keeper.acknowledged(published.version)
        self.watch.paces = Pacing(self._cells, proxy, hear=self._hear)
        return Switching(
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
        meets = (self._cells[one].meet(0, order) for one in order)
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


def terms_of(config: RunConfig, shape: Shape) -> Terms:
    return Terms(
        groups_per_batch=shape.groups_per_batch,
        batch_executions=shape.groups_per_batch * shape.executions_per_group,
        scored_first=config.cells.stages > 1,
        lease_s=config.schedule.lease_s,
        join_s=config.schedule.join_s,
        group_s=config.schedule.group_s,
    )


def deaths_once(
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
