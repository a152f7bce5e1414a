"""Nurseries of one module, one wherever the cluster has a process of it started."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

from gyre.cluster.births import ForkClient, ForkedProcess
from gyre.types.ports import Cluster, Node


class ForkClients:
    """Opened as they are needed; those of a spot that is lost are forgotten."""

    def __init__(self, module: str, cluster: Cluster, log: Path) -> None:
        self._module = module
        self._cluster = cluster
        self._log = log
        self._births: dict[Node, ForkClient] = {}
        self._opening = asyncio.Lock()

    @property
    def pids(self) -> list[int]:
        """Of those on this machine."""
        here = self._cluster.here.host
        return [one.pid for spot, one in self._births.items() if spot.host == here]

    async def at(self, spot: Node) -> ForkClient:
        async with self._opening:
            self._births = {one: born for one, born in self._births.items() if not one.is_lost}
            if spot not in self._births:
                # What should not outlive its controller must not outlive its actor either.
                self._births[spot] = await ForkClient.open(
                    self._module, self._log, at=spot, dies_with_parent=not self._cluster.is_shared
                )
            return self._births[spot]

    async def fork(
        self, name: str, arguments: Sequence[str], *, log: Path, told: str = "", lasts: bool = False
    ) -> ForkedProcess:
        """One more, where executions are."""
        births = await self.at(await self._cluster.agents())
        return await births.fork(name, arguments, log=log, told=told, lasts=lasts)

    def signal_log_holder(self, log: str, number: int) -> None:
        self._cluster.signal_log_holder(log, number)

    async def close(self) -> None:
        await asyncio.gather(*(one.close() for one in self._births.values()))
