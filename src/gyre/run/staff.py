"""The processes of a run: nurseries, cells and the proxy, started, watched and ended."""

import asyncio
import secrets
import shutil
import tempfile
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from gyre.plan.cells import CORE
from gyre.run.births import Births, Child
from gyre.run.cells import CellClient
from gyre.run.plan_file import write_plan
from gyre.run.plans import Places, cell_plan, proxy_plan
from gyre.run.processes import Process
from gyre.run.proxied import ProxyClient
from gyre.run.switching import Weights
from gyre.words.errors import CellError, ConfigError
from gyre.words.run_sections import RunConfig

READY_S = 300.0
"""How long a process may take to be ready: large weights are read."""
MEMORY = Path("/dev/shm")


class Staff:
    """Everybody who works on one run, but the supervisors of its executions."""

    def __init__(self, config: RunConfig, folder: Path) -> None:
        self.config = config
        """With what processes turned out to be like filled in."""
        self.cells: dict[int, CellClient] = {}
        self.places: Places
        self.session: aiohttp.ClientSession
        self.supervisors: Births
        self.proxy: ProxyClient
        self._folder = folder.absolute()
        self._births: Births
        self._processes: dict[int, Child] = {}
        self._proxy_process: Process

    def prepare(self, stack: AsyncExitStack) -> None:
        """The run's folder and what its processes share; nothing runs yet."""
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        share = tempfile.mkdtemp(prefix="gyre-", dir=MEMORY if MEMORY.is_dir() else None)
        stack.callback(shutil.rmtree, share, ignore_errors=True)
        self.places = Places(run=self._folder, share=Path(share))

    async def start(self, stack: AsyncExitStack) -> None:
        """All of them take requests; they end with the stack."""
        token = secrets.token_urlsafe(32)
        self.places.token.touch(mode=0o600)
        self.places.token.write_text(token)
        self.session = await stack.enter_async_context(
            aiohttp.ClientSession(
                headers={"Authorization": f"Bearer {token}"},
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=5.0),
                connector=aiohttp.TCPConnector(limit=0),
            )
        )
        self.supervisors = await Births.open("gyre.run.supervise", self.places.log("nursery"))
        stack.push_async_callback(self.supervisors.close)
        self._births = await Births.open("gyre.run.cell", self.places.log("cells"))
        stack.push_async_callback(self._births.close)
        stack.push_async_callback(self._stop_cells)
        total = self.config.cells.count + len(self.config.cells.standalone)
        clients = await asyncio.gather(*(self._start_cell(cell) for cell in range(total)))
        self.cells = dict(enumerate(clients))
        await self._start_proxy(stack)

    async def restart(self, cell: int, weights: Weights) -> CellClient:
        """A dead cell's new process, with weights that are published."""
        if cell == CORE:
            message = "the core's process ended, and with it the optimizer's state"
            raise CellError(message, retryable=False)
        await self._processes[cell].stop()
        return await self._start_cell(cell, weights)

    async def ended(self, cell: int) -> bool:
        """Waits for the end of a cell's present process; whether it ended by itself."""
        process = self._processes[cell]
        await process.wait()
        return self._processes[cell] is process

    async def watch_proxy(self) -> None:
        """Raises when it ends."""
        status = await self._proxy_process.wait()
        raise ConfigError(f"the proxy ended with status {status}: see {self.places.log('proxy')}")

    async def _start_cell(self, cell: int, weights: Weights | None = None) -> CellClient:
        plan = cell_plan(self.config, self.places, cell)
        if weights is not None:
            # The proxy and its routes know the cell by the address it had.
            port = urlsplit(self.cells[cell].url).port or 0
            folder = str(weights.folder)
            plan = replace(plan, model=folder, version=weights.version, port=port)
        path = write_plan(self.places.plan(plan.name), plan)
        process = await self._births.birth(plan.name, [str(path)], log=self.places.log(plan.name))
        self._processes[cell] = process
        self._note_pid(plan.name, process.pid)
        return CellClient(cell, await process.ready(READY_S), self.session)

    async def _stop_cells(self) -> None:
        stops: list[Coroutine[Any, Any, None]] = [one.stop() for one in self._processes.values()]
        await asyncio.gather(*stops)

    async def _start_proxy(self, stack: AsyncExitStack) -> None:
        window = min([await one.context_tokens() for one in self.cells.values()])
        plan = proxy_plan(
            self.config,
            self.places,
            engines=tuple(f"gyre={one.url}" for one in self.cells.values()),
            context_tokens=window,
        )
        # What the window came to is what agent programs are told.
        self.config = replace(self.config, proxy=plan.proxy)
        path = write_plan(self.places.plan("proxy"), plan)
        arguments = ("-m", "gyre.run.proxy", str(path))
        process = await Process.start("proxy", arguments, self.places.log("proxy"))
        stack.push_async_callback(process.stop)
        self._proxy_process = process
        self._note_pid("proxy", process.pid)
        self.proxy = ProxyClient(await process.ready(READY_S), self.session)

    def _note_pid(self, name: str, pid: int) -> None:
        path = self.places.pid(name)
        path.parent.mkdir(exist_ok=True, mode=0o700)
        path.write_text(str(pid))
