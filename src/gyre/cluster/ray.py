"""The Ray cluster: a placement group per cell, and a node agent on every node.

A cluster of Ray: a placement group for each cell, and a small actor wherever processes start.

Rule 1: Ray places and starts, and nothing else; what travels through it are texts and numbers.
Rule 2: no actor is detached: what is kept for a run is given back when its controller ends.
"""

import asyncio
import logging
import os
import secrets
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from math import ceil
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util import get_node_ip_address
from ray.util.placement_group import (
    PlacementGroup,
    placement_group,
    placement_group_table,
    remove_placement_group,
)
from ray.util.scheduling_strategies import (
    NodeAffinitySchedulingStrategy,
    PlacementGroupSchedulingStrategy,
)

from gyre.cluster.node_agent import NodeAgent
from gyre.cluster.process import LocalNode
from gyre.config.run_config import ClusterConfig
from gyre.types.errors import ConfigError
from gyre.types.protocols import LOST, Node


class RayProcess:
    """A process that a node's agent started."""

    def __init__(self, pid: int, spot: "RayNode") -> None:
        self.pid = pid
        self._spot = spot
        self._steward = spot.steward
        self._ended = asyncio.create_task(self._wait())

    @property
    def is_over(self) -> bool:
        return self._ended.done()

    async def tell(self, line: bytes) -> None:
        try:
            is_read = await self._steward.tell.remote(self.pid, line.decode())
        except RayError as error:
            raise BrokenPipeError(str(error)) from error
        if not is_read:
            raise BrokenPipeError(f"process {self.pid} reads no more")

    def hang_up(self) -> None:
        if not self._spot.is_lost:
            self._steward.hang_up.remote(self.pid)

    async def lines(self) -> AsyncIterator[bytes]:
        with suppress(RayError):
            while (line := await self._steward.line.remote(self.pid)) is not None:
                yield line.encode()

    async def wait(self) -> int:
        return await asyncio.shield(self._ended)

    async def close(self) -> None:
        if not self._spot.is_lost:
            with suppress(RayError):
                await self._steward.close.remote(self.pid)
        await self.wait()

    async def _wait(self) -> int:
        try:
            status: int = await self._steward.wait.remote(self.pid)
        except RayError:
            return LOST
        return status


class RayNode:
    """A node of a Ray cluster: its agent, and those of a cell's other nodes."""

    def __init__(
        self, steward: Any, host: str, *, others: Sequence[Any] = (), doors: Sequence[str] = ()
    ) -> None:
        self.host = host
        self.doors = doors
        self.steward = steward
        self.others = others
        self._has_ended = False
        self._staying = asyncio.create_task(self._stay())

    @property
    def is_lost(self) -> bool:
        return self._has_ended or self._staying.done()

    async def spawn(self, argv: Sequence[str], *, log: str) -> RayProcess:
        if self.is_lost:
            raise ConfigError(f"node {self.host}: lost")
        try:
            found = await self.steward.spawn.remote(list(argv), log, str(Path.cwd()))
        except RayError as error:
            raise ConfigError(f"node {self.host}: lost: {first_line(error)}") from error
        if isinstance(found, str):
            raise ConfigError(f"node {self.host}: cannot start {argv[1]}: {found}")
        return RayProcess(found, self)

    def signal(self, pid: int, number: int, *, group: bool = False) -> None:
        if not self.is_lost:
            self.steward.signal.remote(pid, int(number), group)

    async def is_running(self, pid: int, log: str) -> bool:
        if self.is_lost:
            return False
        try:
            found: bool = await self.steward.holds.remote(pid, log)
        except RayError:
            return False
        return found

    def signal_log_holder(self, log: str, number: int) -> None:
        if not self.is_lost:
            self.steward.order.remote(log, int(number))

    def end(self) -> None:
        """Nothing can be started there any more, and its actors are not called again.

        A call of an actor after the last of them would begin a cluster of its own.
        """
        self._has_ended = True
        for steward in (self.steward, *self.others):
            ray.kill(steward)

    async def _stay(self) -> None:
        """Until one of them is gone, because then the cell is."""
        staying = [asyncio.ensure_future(_stay(one)) for one in (self.steward, *self.others)]
        await asyncio.wait(staying, return_when=asyncio.FIRST_COMPLETED)
        for one in staying:
            one.cancel()


async def _stay(steward: Any) -> None:
    with suppress(RayError):
        await steward.stay.remote()


def first_line(error: BaseException) -> str:
    """The first line of what Ray says, which has many."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


_log = logging.getLogger(__name__)
MODE, TOKEN = "RAY_AUTH_MODE", "RAY_AUTH_TOKEN"
SEEN = "cluster.seen"
"""File of the run's folder that every node must find there."""
START_S = 60.0
"""How long an actor may take to begin on a node that has resources for it."""
LIST_S = 5.0
"""How often it is asked which nodes there are, at most."""


class RayCluster:
    """The nodes of a Ray cluster, as one run uses them; made by `opened`."""

    is_shared = False

    def __init__(self, section: ClusterConfig, *, run: str, folder: Path, key_file: Path) -> None:
        self.here: Node = LocalNode(get_node_ip_address())
        self._section = section
        self._run = run
        self._key_file = key_file
        self._seen = folder / SEEN
        self._mark = secrets.token_hex(16)
        self._seen.write_text(self._mark)
        self._cells: dict[int, tuple[PlacementGroup, RayNode]] = {}
        self._nodes: dict[str, RayNode] = {}
        self._unfit: dict[str, BaseException] = {}
        """Nodes that are not asked again, and why."""
        self._silent: dict[str, BaseException] = {}
        """Nodes on which nothing started when that was last tried, and why."""
        self._for_agents: set[str] = set()
        self._listed_at: float | None = None
        self._listing = asyncio.Lock()
        self._beginning: dict[str, asyncio.Task[None]] = {}
        """New nodes whose agents are starting."""
        self._num_agents = 0

    async def cell(self, cell: int, *, nodes: int = 1) -> Node:
        if cell in self._cells:
            group, spot = self._cells[cell]
            if not spot.is_lost:
                return spot
            del self._cells[cell]
            spot.end()
            remove_placement_group(group)
        found = await self._kept(cell, nodes)
        self._cells[cell] = found
        return found[1]

    async def agents(self) -> Node:
        """The nodes in turn."""
        if self._section.agents == "beside":
            return self.here
        await self._list()
        nodes = self._free()
        if not nodes:
            # One that takes its time is waited for only where there is no other.
            await self.look()
            nodes = self._free()
        if not nodes:
            wanted = self._section.agents_resource
            what = "is there" if wanted is None else f"has {wanted}"
            message = f"cluster.agents: no node {what} on which executions can be started"
            reasons = [*self._unfit.values(), *self._silent.values()]
            raise ConfigError("\n  ".join([message, *map(str, reasons)]))
        self._num_agents += 1
        return nodes[self._num_agents % len(nodes)]

    def signal_log_holder(self, log: str, number: int) -> None:
        self.here.signal_log_holder(log, number)
        for spot in self._nodes.values():
            spot.signal_log_holder(log, number)

    async def look(self) -> None:
        """An agent runs on each node that is there now, but those that are not fit for it.

        One that does not answer is about to leave, or is busy and asked again.
        """
        await self._list()
        if self._beginning:
            # The waiting task may be cancelled, and the node agents start all the same.
            await asyncio.wait(self._beginning.values())

    def _free(self) -> list[RayNode]:
        """Where executions can be started now."""
        found = self._nodes.items()
        return [one for name, one in found if name in self._for_agents and not one.is_lost]

    async def _list(self) -> None:
        """Starts agents on new nodes."""
        async with self._listing:
            now = asyncio.get_running_loop().time()
            if self._listed_at is not None and now < self._listed_at + LIST_S:
                return
            self._listed_at = now
            nodes = await _nodes()
            hosts = {one["NodeID"]: one["NodeManagerAddress"] for one in nodes}
            self._for_agents = {one["NodeID"] for one in nodes if self._has_agents(one)}
            self._nodes = {name: spot for name, spot in self._nodes.items() if not spot.is_lost}
            self._silent = {name: why for name, why in self._silent.items() if name in hosts}
            for name in hosts.keys() - {*self._nodes, *self._unfit, *self._beginning}:
                self._beginning[name] = asyncio.create_task(self._begin(name, hosts[name]))

    async def _begin(self, node: str, host: str) -> None:
        try:
            self._nodes[node] = await self._on(node, host)
            self._silent.pop(node, None)
        except ConfigError as error:
            if error.__cause__ is None:
                self._unfit[node] = error
                return
            if node not in self._silent:
                _log.warning("%s", error)
            self._silent[node] = error
        finally:
            del self._beginning[node]

    def unfit(self) -> BaseException | None:
        """What is wrong with a node, if anything is."""
        return next(iter(self._unfit.values()), None)

    async def close(self) -> None:
        begun = list(self._beginning.values())
        for one in begun:
            one.cancel()
        await asyncio.gather(*begun, return_exceptions=True)
        for group, spot in self._cells.values():
            spot.end()
            remove_placement_group(group)
        for spot in self._nodes.values():
            spot.end()
        await asyncio.to_thread(ray.shutdown)
        with suppress(OSError):
            self._seen.unlink()

    def _has_agents(self, node: Mapping[str, Any]) -> bool:
        wanted = self._section.agents_resource
        return wanted is None or wanted in node["Resources"]

    async def _kept(self, cell: int, nodes: int) -> tuple[PlacementGroup, RayNode]:
        """Reserves one cell's resources: a bundle on each of its nodes, and an agent in each."""
        bundles, place_s = [self._bundle()] * nodes, self._section.place_s
        # On one node there is one bundle; several may share a node where two fit.
        strategy = "STRICT_PACK" if nodes == 1 else "PACK"
        # A name for people; another each time, because the one before may not be gone yet.
        name = f"{self._run}-cell-{cell}-{secrets.token_hex(4)}"
        group = placement_group(bundles, strategy=strategy, name=name)
        with ExitStack() as stack:
            stack.callback(remove_placement_group, group)
            if not await asyncio.to_thread(group.wait, ceil(place_s)):
                free = await asyncio.to_thread(ray.available_resources)
                which = "no node has" if nodes == 1 else f"no {nodes} nodes have, each,"
                raise ConfigError(
                    f"cell {cell}: {which} {_amounts(bundles[0])} free within {place_s:g} s; "
                    f"all nodes together have {_amounts(free, bundles[0])}"
                )
            spot = await self._in(cell, group, stack)
            stack.pop_all()
        return group, spot

    async def _in(self, cell: int, group: PlacementGroup, stack: ExitStack) -> RayNode:
        """Agents of a group's bundles, sorted by node so that neighbouring ranks share one."""
        table = await asyncio.to_thread(placement_group_table, group)
        places = {int(index): node for index, node in table["bundles_to_node_id"].items()}
        hosts = {one["NodeID"]: one["NodeManagerAddress"] for one in await _nodes()}
        if not set(places.values()) <= set(hosts):
            raise ConfigError(f"cell {cell}: a node that was kept for it is gone again")
        spots = []
        for index in sorted(places, key=lambda index: (hosts[places[index]], index)):
            strategy = PlacementGroupSchedulingStrategy(
                placement_group=group, placement_group_bundle_index=index
            )
            spot = await self._spot(hosts[places[index]], strategy, self._bundle())
            stack.callback(spot.end)
            spots.append(spot)
        first, *others = spots
        if not others:
            return first
        doors = [await self._door(one) for one in others]
        stewards = [one.steward for one in others]
        return RayNode(first.steward, first.host, others=stewards, doors=doors)

    async def _door(self, spot: RayNode) -> str:
        try:
            port = await spot.steward.door.remote(spot.host, str(self._key_file))
        except RayError as error:
            raise ConfigError(f"node {spot.host}: no door there: {first_line(error)}") from error
        return f"{spot.host}:{port}"

    def _bundle(self) -> dict[str, float]:
        section = self._section
        wanted = {"CPU": section.cell_cpus, "GPU": section.cell_gpus}
        if section.cell_resource is not None:
            wanted[section.cell_resource] = 1.0
        return {name: amount for name, amount in wanted.items() if amount > 0}

    async def _on(self, node: str, host: str) -> RayNode:
        strategy = NodeAffinitySchedulingStrategy(node_id=node, soft=False)
        return await self._spot(host, strategy, {})

    async def _spot(self, host: str, strategy: Any, bundle: dict[str, float]) -> RayNode:
        """Its agent has all of its bundle, so that what it starts sees the bundle's GPUs."""
        amounts = dict(bundle)
        actor = ray.remote(NodeAgent).options(
            num_cpus=amounts.pop("CPU", 0.0),
            num_gpus=amounts.pop("GPU", 0.0),
            resources=amounts,
            max_restarts=0,
            scheduling_strategy=strategy,
        )
        steward = actor.remote()
        try:
            async with asyncio.timeout(START_S):
                sees = await steward.sees.remote(str(self._seen), self._mark)
        except (RayError, TimeoutError) as error:
            ray.kill(steward)
            raise ConfigError(f"node {host}: nothing starts there: {first_line(error)}") from error
        if not sees:
            ray.kill(steward)
            raise ConfigError(
                f"node {host}: does not see {self._seen}; expected the run's folder on a file "
                "system that all nodes share"
            )
        return RayNode(steward, host)


async def opened(section: ClusterConfig, *, run: str, folder: Path, key_file: Path) -> RayCluster:
    """Connects, with an agent on every node; ConfigError where that cannot be."""
    _check_auth()
    try:
        # Not in the main thread, where Ray would take signals that are meant for the controller.
        await asyncio.to_thread(
            ray.init,
            address=section.address,
            namespace=section.namespace,
            configure_logging=False,
            logging_level=logging.ERROR,
            log_to_driver=False,
        )
    except (RayError, ConnectionError, RuntimeError, ValueError) as error:
        raise ConfigError(f"cluster.address: {section.address}: {first_line(error)}") from error
    cluster = RayCluster(section, run=run, folder=folder, key_file=key_file)
    await cluster.look()
    if (wrong := cluster.unfit()) is not None:
        await cluster.close()
        raise wrong
    return cluster


def _check_auth() -> None:
    """Refuses a cluster whose authentication is not set, because actors may run any program."""
    mode = os.environ.get(MODE)
    if mode not in ("token", "disabled"):
        raise ConfigError(
            f'cluster.kind: "ray" expects {MODE} in the environment, as the cluster was started '
            f"with: token, with {TOKEN}, or disabled where the network lets nobody else in"
        )
    if mode == "token" and not os.environ.get(TOKEN):
        raise ConfigError(f"{TOKEN}: missing; expected in the environment, because {MODE} is token")


def _amounts(found: Mapping[str, float], of: Mapping[str, float] | None = None) -> str:
    """So much of each resource, of those that are asked for."""
    return ", ".join(f"{name} {found.get(name, 0.0):g}" for name in of or found)


async def _nodes() -> list[dict[str, Any]]:
    """Those that are alive."""
    return [node for node in await asyncio.to_thread(ray.nodes) if node["Alive"]]
