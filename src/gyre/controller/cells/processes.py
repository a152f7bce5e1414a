"""Cell processes and fork servers of a run: started on the cluster's nodes, watched and ended."""

import asyncio
import secrets
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from signal import SIGKILL
from typing import Self
from urllib.parse import urlsplit

import aiohttp

from gyre.cell.client import CellClient
from gyre.cell.spec import CellSpec
from gyre.cluster.fork_client import ForkClients
from gyre.cluster.process import holds_log
from gyre.cluster.registry import open_cluster
from gyre.config.run_config import RunConfig
from gyre.controller.cells.cell import Cell, RunCells
from gyre.controller.process_specs import cell_plan
from gyre.controller.proxy_processes import ProxyProcesses
from gyre.controller.run_dir import RunDir
from gyre.model.checkpoint_store import Checkpoint
from gyre.storage import files
from gyre.storage.files import write_plan
from gyre.types.ids import EngineName
from gyre.types.protocols import Cluster

READY_S = 300.0
"""How long a process may take to be ready: large weights are read."""
END_S = 5.0
"""How long the end of a killed process may take to be reported."""


def open_session(places: RunDir) -> aiohttp.ClientSession:
    """Shows a new token, so that no process of the run obeys an earlier controller."""
    token = secrets.token_urlsafe(32)
    files.replace(places.token, token.encode(), is_secret=True)
    return aiohttp.ClientSession(
        headers={"Authorization": f"Bearer {token}"},
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=5.0),
        connector=aiohttp.TCPConnector(limit=0),
    )


class CellProcesses:
    """The cell processes of one run, and the fork servers that start cells and supervisors."""

    def __init__(
        self,
        config: RunConfig,
        places: RunDir,
        session: aiohttp.ClientSession,
        cluster: Cluster,
        proxies: ProxyProcesses,
    ) -> None:
        self.config = config
        """With what processes turned out to be like filled in."""
        self.places = places
        self.cluster = cluster
        self.cells = RunCells(config.cells.count, num_standalone=len(config.cells.standalone))
        self.supervisors = ForkClients("gyre.rollout.main", cluster, places.log("nursery"))
        self._session = session
        self.proxies = proxies
        self._fork_client = ForkClients("gyre.cell.main", cluster, places.log("cells"))

    @classmethod
    async def open(
        cls,
        config: RunConfig,
        places: RunDir,
        session: aiohttp.ClientSession,
        proxies: ProxyProcesses,
        stack: AsyncExitStack,
    ) -> Self:
        """Fork servers of the run's cluster, which close with the stack; no cell runs yet."""
        cluster = await open_cluster(
            config.cluster, run=config.run.name, folder=places.run, key_file=places.token
        )
        stack.push_async_callback(cluster.close)
        opened = cls(config, places, session, cluster, proxies)
        stack.push_async_callback(opened.supervisors.close)
        stack.push_async_callback(opened._fork_client.close)
        if cluster.is_shared:
            # Their imports take seconds, which pass meanwhile.
            await opened.supervisors.at(cluster.here)
            await opened._fork_client.at(cluster.here)
        else:
            opened._end_elsewhere()
        return opened

    def _end_elsewhere(self) -> None:
        """What an earlier controller left on other machines; here that has been seen to."""
        for path in self.places.pids.glob("*"):
            log, text = self.places.log(path.name), path.read_text()
            if not (text.isdecimal() and holds_log(int(text), log)):
                self.cluster.signal_log_holder(str(log), SIGKILL)

    async def start(self, stack: AsyncExitStack) -> None:
        """All cells take requests; they end with the stack."""
        self._stop_with(stack)
        starts = [asyncio.ensure_future(self._start_cell(cell)) for cell in self.cells.values()]
        try:
            clients = await asyncio.gather(*starts)
        finally:
            # After a failure no cell may go on starting, because the stack is about to end them.
            for task in starts:
                task.cancel()
            await asyncio.gather(*starts, return_exceptions=True)
        for cell, client in zip(self.cells.values(), clients, strict=True):
            cell.replace(client)

    def recall(self, stack: AsyncExitStack, urls: Sequence[tuple[EngineName, str]]) -> None:
        """Cells of an earlier controller by their names and addresses, none of which is alive."""
        self._stop_with(stack)
        for number, (name, url) in enumerate(urls):
            self.cells[number].replace(CellClient(number, url, self._session, engine=name))

    def _stop_with(self, stack: AsyncExitStack) -> None:
        """Cells that run when the stack closes end with it."""
        stack.push_async_callback(self._stop_cells)

    @property
    def pids(self) -> dict[int, int]:
        """Processes of cells and standalone engines on this machine, by cell."""
        here = self.cluster.here.host
        return {
            cell.number: process.pid
            for cell in self.cells.values()
            if (process := cell.process) is not None
            if process.node.host == here and not process.is_over
        }

    def log(self, cell: int) -> Path:
        """The log of the cell's processes."""
        return self.places.log(self._plan(cell).name)

    def is_over(self, cell: int) -> bool:
        process = self.cells[cell].process
        return process is None or process.is_over

    async def end(self, cell: int) -> None:
        """Its process is gone for certain, however it is, and everything that it started."""
        process, self.cells[cell].process = self.cells[cell].process, None
        if process is not None:
            process.signal(SIGKILL)
            await process.end(END_S)

    async def start_again(self, cell: int, checkpoint: Checkpoint | None) -> CellClient:
        """Another process, at the address by which the proxy and its routes know the cell.

        On another machine it keeps its name, and the proxy is sent its engine's new address.
        """
        before = self.cells[cell].client
        client = await self._start_cell(self.cells[cell], checkpoint, before=before)
        if client.url != before.url:
            await self.proxies.set_address(client.engine, client.url)
        return client

    async def ended(self, cell: int) -> bool:
        """Waits for the end of a cell's present process; whether it ended by itself."""
        process = self.cells[cell].process
        if process is None:
            return False
        await process.wait()
        return self.cells[cell].process is process

    def _plan(self, cell: int) -> CellSpec:
        return cell_plan(self.config, self.places, cell)

    async def _start_cell(
        self, cell: Cell, checkpoint: Checkpoint | None = None, *, before: CellClient | None = None
    ) -> CellClient:
        folder = None if checkpoint is None else checkpoint.folder
        nodes = 1 if cell.is_standalone else self.config.cluster.cell_nodes
        node = await self.cluster.cell(cell.number, nodes=nodes)
        plan = replace(
            self._plan(cell.number),
            checkpoint=folder,
            host=node.host,
            port=_port(before, node.host),
            doors=tuple(node.doors),
        )
        path = write_plan(self.places.plan(plan.name), plan)
        fork_client = await self._fork_client.at(node)
        process = await fork_client.fork(plan.name, [str(path)], log=self.places.log(plan.name))
        cell.process = process
        self.places.note_pid(plan.name, process.pid)
        url = await process.ready(self._ready_s)
        name = None if before is None else before.engine
        return CellClient(cell.number, url, self._session, engine=name)

    @property
    def _ready_s(self) -> float:
        """A cell with a server of its own is ready once that is."""
        cells = self.config.cells
        return READY_S + cells.server_start_s

    async def _stop_cells(self) -> None:
        processes = [cell.process for cell in self.cells.values()]
        await asyncio.gather(*(process.stop() for process in processes if process is not None))


def _port(before: CellClient | None, host: str) -> int:
    """The one it had, if it is back where it was; else whichever is free."""
    if before is None:
        return 0
    parts = urlsplit(before.url)
    assert parts.port is not None
    return parts.port if parts.hostname == host else 0
