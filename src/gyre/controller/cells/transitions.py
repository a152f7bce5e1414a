"""Role changes, weight loads and restarts of cells: each order of the scheduler as its steps.

Rule 1: a cell does one of these at a time; an order that comes meanwhile waits for its end.
Rule 2: every order is answered by exactly one event, failure included.
"""

import asyncio
from collections.abc import Mapping, MutableMapping
from contextlib import suppress
from time import perf_counter
from typing import Any

from gyre.aio import ChangeSignal
from gyre.cell.client import CellClient
from gyre.controller.cells.cell import MOST_STARTS, WELL_S, Cell, RunCells
from gyre.controller.cells.checkpointer import Checkpointer
from gyre.controller.cells.health import HealthMonitor
from gyre.controller.cells.processes import CellProcesses
from gyre.controller.routes import RouteTables
from gyre.controller.run_loop import RunLoop
from gyre.controller.training.coordinator import TrainingCoordinator
from gyre.model.checkpoint_store import Checkpoint
from gyre.proxy.client import ShardedProxyClient
from gyre.scheduler.messages import (
    CellRecovered,
    CellServing,
    CellTraining,
    EngineReturned,
    EnterTraining,
    LeaveReason,
    LeaveTraining,
    LoadWeights,
    Publish,
    Published,
    TransitionFailed,
)
from gyre.types.errors import (
    CellError,
    CellGone,
    ConfigError,
    ExposureGone,
    GyreError,
    TransferError,
)
from gyre.types.ids import CORE, CellId, EngineId
from gyre.types.run_events import CellRestarted, TransitionTimed, WeightsPublished

VACATE_S = 60.0
"""How long calls may take to leave an engine; each part of a hand-over has router.kv_s."""
RETRY_S = 1.0
"""Pause before weights are offered again to an engine that could not take them."""
COUNTED = (
    "reroutes",
    "midway",
    "hand_overs",
    "lost_hand_overs",
    "carried_bytes",
    "carried_tokens",
    "again_tokens",
)
"""What a proxy counts of calls that moved."""


class CellRestarter:
    """Starts the process of a dead cell again, until it is well or was started too often."""

    def __init__(
        self,
        loop: RunLoop,
        cell_processes: CellProcesses,
        coordinator: TrainingCoordinator,
        checkpointer: Checkpointer,
        *,
        lease_s: float,
    ) -> None:
        self._loop = loop
        self._cell_processes = cell_processes
        self._coordinator = coordinator
        self._checkpointer = checkpointer
        self._lease_s = lease_s

    def is_hopeless(self, engine: Cell, seconds: float) -> bool:
        """An engine that took no weights for so long does not do so by waiting."""
        return self._cell_processes.is_over(engine.number) or seconds > self._lease_s

    async def end(self, cell: Cell) -> None:
        """Its process is gone for certain."""
        await self._cell_processes.end(cell.number)

    async def revived(self, cell: Cell) -> int:
        """The version that its engine serves, verified by digest; CellError if there is no hope."""
        last: GyreError | OSError | None = None
        while True:
            wait_s = cell.restarts.begin(self._loop.now)
            if wait_s is None:
                raise self._hopeless(cell, last)
            await asyncio.sleep(wait_s)
            try:
                version = await self._tried(cell)
            except (CellError, ConfigError, OSError) as error:
                # Its plan may find the disk full, which passes.
                last = error
            else:
                cell.recovered(self._loop.now)
                return version

    def _hopeless(self, cell: Cell, last: GyreError | OSError | None) -> CellError:
        why = f"and ended within {WELL_S:g} s" if last is None else f"in vain: {last}"
        log = self._cell_processes.log(cell.number)
        message = f"cell {cell.number}: started {MOST_STARTS} times {why}; see {log}"
        return CellError(message, retryable=False)

    async def _tried(self, cell: Cell) -> int:
        began = perf_counter()
        # Gone for certain, so that there are never two of one cell, nor two who write checkpoints.
        await self.end(cell)
        published = self._checkpointer.published
        first: Checkpoint | None = published
        if cell.number == CORE:
            first = await self._checkpointer.to_begin_from(self._coordinator.version)
        with self._checkpointer.using(published.version if first is None else first.version):
            client = await self._cell_processes.start_again(cell.number, first)
        cell.replace(client)
        health = await client.health()
        self._loop.record(
            CellRestarted(
                cell=cell.number,
                attempt=cell.restarts.attempt,
                trainer_version=health.trainer_version,
                seconds=perf_counter() - began,
            )
        )
        if cell.number == CORE:
            await self._replayed(client, health.trainer_version)
        published = self._checkpointer.published
        with self._checkpointer.using(published.version):
            await client.load(published.folder, version=published.version, digest=published.digest)
        return published.version

    async def _replayed(self, core: CellClient, version: int | None) -> None:
        """The core's trainer is where it was, and that is durable before its engine serves."""
        assert version is not None
        if version == self._coordinator.version:
            return
        await core.enter()
        await self._coordinator.replay(core, version)
        await self._checkpointer.made(self._coordinator.version)
        await core.leave(keep_sum=False)


class RoleTransitions:
    """Carries out enter, leave, publish, load and restart commands, each as steps in order."""

    def __init__(
        self,
        loop: RunLoop,
        cells: RunCells,
        coordinator: TrainingCoordinator,
        routes: RouteTables,
        proxy: ShardedProxyClient,
        checkpointer: Checkpointer,
        restarter: CellRestarter,
        health: HealthMonitor,
        *,
        publish_s: float,
        offers: bool,
    ) -> None:
        """Where the core offers weights, engines of other cells read them from its memory."""
        self._loop = loop
        self._cells = cells
        self._coordinator = coordinator
        self._routes = routes
        self._proxy = proxy
        self._checkpointer = checkpointer
        self._restarter = restarter
        self._health = health
        self._publish_s = publish_s
        self._offers = offers
        self._publication: Publish | None = None
        """The last that was ordered."""
        self._core_entering = 0
        """Transitions of the core into training that are under way."""
        self._changes = ChangeSignal()
        """Told of orders, and when the core has entered or could not."""
        self._counts: dict[str, int] = dict.fromkeys(COUNTED, 0)

    def ordered(self, command: EnterTraining | LeaveTraining) -> None:
        """Noted at once, so that a transition under way for the cell finds itself outdated."""
        cell = self._cells[command.cell]
        cell.transition = command.transition
        if isinstance(command, LeaveTraining):
            cell.is_leaving = True
        self._changes.tell()

    async def enter(self, command: EnterTraining) -> None:
        """SPEC 2.3, from the routes to the claim on work."""
        if command.cell != CORE:
            await self._enter(command)
            return
        self._core_entering += 1
        try:
            await self._enter(command)
        finally:
            self._core_entering -= 1
            self._changes.tell()

    async def _enter(self, command: EnterTraining) -> None:
        cell = self._cells[command.cell]
        client, generation = cell.client, cell.generation
        phases: dict[str, float] = {}
        moved: dict[str, int] = {}
        async with cell.lock:
            try:
                with _timing(phases, "reroute"):
                    await self._routes.flushed()
                with _timing(phases, "hand over"), suppress(TimeoutError):
                    # What is still there afterwards ends with its engine, and goes on elsewhere.
                    async with asyncio.timeout(VACATE_S):
                        moved = self._moved(await self._proxy.wait_drained(client.engine))
                if not self._is_current(command):
                    return
                phases |= await client.enter()
                if command.cell != CORE:
                    with _timing(phases, "pull"):
                        # Until the core is in, its weights are not on its device.
                        await self._changes.until(
                            lambda: not self._core_entering or not self._is_current(command)
                        )
                        if not await self._coordinator.pull(
                            cell, wanted=lambda: self._is_current(command)
                        ):
                            return
                else:
                    await self._coordinator.between_updates()
            except CellGone:
                cell.report_death(generation, self._loop)
                return
            except CellError:
                await self._back_home(command)
                return
            finally:
                self._note(command, phases, moved, into_training=True)
            if self._is_current(command):
                self._loop.record(CellTraining(cell=command.cell, transition=command.transition))
                self._coordinator.join(cell)

    async def leave(self, command: LeaveTraining) -> None:
        """Its sum is given up, or parked with the core; its engine is up with the right weights."""
        cell = self._cells[command.cell]
        client, generation = cell.client, cell.generation
        parks = command.cell == CORE and command.reason is LeaveReason.RESCUE
        phases: dict[str, float] = {}
        async with cell.lock:
            try:
                with _timing(phases, "finish claim"):
                    await self._coordinator.leave(cell, parks=parks)
                phases |= await client.leave(keep_sum=parks)
                if command.reason is not LeaveReason.AFTER_BURST:
                    with _timing(phases, "load"):
                        await self._load(client)
            except CellGone:
                cell.report_death(generation, self._loop)
                return
            except CellError:
                self._failed(command)
                return
            finally:
                self._note(command, phases, {}, into_training=False)
            self._loop.record(CellServing(cell=command.cell, transition=command.transition))

    async def publish(self, command: Publish) -> None:
        """Durable weights, then every engine acknowledges their digest (SPEC 2.4)."""
        self._publication = command
        core = self._cells[CORE]
        generation = core.generation
        try:
            new, saved = await self._checkpointer.saved(command.version)
        except CellGone:
            core.report_death(generation, self._loop)
            return
        if self._publication is not command:
            return
        self._checkpointer.publish(new)
        began = perf_counter()
        taken = await asyncio.gather(*(self._takes(engine) for engine in command.engines))
        if self._publication is not command:
            # The core died meanwhile and came back, and other engines are asked now.
            return
        silent = tuple(
            engine for engine, took in zip(command.engines, taken, strict=True) if not took
        )
        self._loop.record(
            WeightsPublished(
                version=command.version,
                digest=new.digest,
                save_s=saved.seconds,
                load_s=perf_counter() - began,
                num_bytes=saved.num_bytes,
            )
        )
        self._loop.record(Published(version=command.version, silent=silent))
        await self._loop.settled()
        self._checkpointer.acknowledged(command.version)
        await self._checkpointer.prune()

    async def load(self, command: LoadWeights) -> None:
        """A fenced engine gets what is published, whenever it can take it."""
        engine, version = self._cells[command.engine], command.version
        generation = engine.generation
        clock = asyncio.get_running_loop().time
        since = clock()
        while engine.generation == generation and self._checkpointer.published.version == version:
            if await self._takes(command.engine):
                self._loop.record(EngineReturned(engine=command.engine, version=version))
                return
            if self._restarter.is_hopeless(engine, clock() - since):
                await self._replace(engine, generation)
                return
            await asyncio.sleep(RETRY_S)

    async def revive(self, number: CellId) -> None:
        """A dead cell's processes are started again; it is home, with what is published."""
        cell = self._cells[number]
        self._coordinator.lost(cell)
        # An order that it hangs in ends with it, and the task that waits gives up the lock.
        await self._restarter.end(cell)
        async with cell.lock:
            version = await self._restarter.revived(cell)
            self._loop.record(CellRecovered(cell=number, version=version))
            self._health.follow(cell)

    async def _replace(self, engine: Cell, generation: int) -> None:
        """Another process takes the place of an engine that takes no weights."""
        if not engine.is_standalone:
            engine.report_death(generation, self._loop)
            return
        async with engine.lock:
            if engine.generation != generation:
                return  # Another order has led to another process, and answers for both.
            version = await self._restarter.revived(engine)
            self._loop.record(EngineReturned(engine=EngineId(engine.number), version=version))
            self._health.follow(engine)

    async def _back_home(self, command: EnterTraining) -> None:
        """A cell that could not enter is back where the transition found it."""
        cell = self._cells[command.cell]
        generation = cell.generation
        try:
            await cell.client.leave(keep_sum=command.cell == CORE)
            await self._load(cell.client)
        except CellError:
            cell.report_death(generation, self._loop)
            return
        self._failed(command)

    def _failed(self, command: EnterTraining | LeaveTraining) -> None:
        self._loop.record(TransitionFailed(cell=command.cell, transition=command.transition))

    async def _takes(self, engine: EngineId) -> bool:
        try:
            async with asyncio.timeout(self._publish_s):
                await self._load(self._cells[engine].client)
        except (CellError, TimeoutError):
            return False
        return True

    async def _load(self, client: CellClient) -> None:
        """What is published, also where that changes while an engine loads what was."""
        while True:
            new = self._checkpointer.published
            try:
                await self._load_version(client, new)
            except ExposureGone:
                if self._checkpointer.published is new:
                    raise
            else:
                return

    async def _load_version(self, client: CellClient, new: Checkpoint) -> None:
        with self._checkpointer.using(new.version):
            if self._offers and client is not self._cells[CORE].client:
                # What the core cannot give, its folder has.
                with suppress(TransferError):
                    await self._load_offered(client, new)
                    return
            await client.load(new.folder, version=new.version, digest=new.digest)

    async def _load_offered(self, client: CellClient, new: Checkpoint) -> None:
        try:
            given = await self._cells[CORE].client.offer(new.folder, version=new.version)
        except CellError as error:
            raise TransferError(f"the core offers no weights: {error}") from error
        await client.load(new.folder, version=new.version, digest=new.digest, given=given)

    def _is_current(self, command: EnterTraining | LeaveTraining) -> bool:
        return self._cells[command.cell].transition == command.transition

    def _moved(self, counts: Mapping[str, Any]) -> dict[str, int]:
        """Since it was asked last; another proxy begins to count anew."""
        now = {name: int(counts[name]) for name in COUNTED}
        found = {name: max(0, now[name] - self._counts[name]) for name in COUNTED}
        self._counts = now
        return found

    def _note(
        self,
        command: EnterTraining | LeaveTraining,
        phases: Mapping[str, float],
        moved: Mapping[str, int],
        *,
        into_training: bool,
    ) -> None:
        self._loop.record(
            TransitionTimed(
                cell=command.cell,
                transition=command.transition,
                into_training=into_training,
                phases=dict(phases),
                moved=moved,
            )
        )


class _timing:
    """Seconds that a block takes, under its name."""

    def __init__(self, phases: MutableMapping[str, float], name: str) -> None:
        self._phases = phases
        self._name = name

    def __enter__(self) -> None:
        self._began = perf_counter()

    def __exit__(self, *_: object) -> None:
        self._phases[self._name] = perf_counter() - self._began
