"""The processes of a run: nurseries and cells, started, watched and ended."""

import asyncio
import secrets
from collections.abc import Coroutine, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from signal import SIGKILL
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from gyre import durable
from gyre.run import shares
from gyre.run.births import Births, Child
from gyre.run.cell_plan import CellPlan
from gyre.run.cells import CellClient
from gyre.run.checkpoints import Checkpoint
from gyre.run.plan_file import write_plan
from gyre.run.plans import Places, cell_plan
from gyre.words.run_sections import RunConfig

READY_S = 300.0
"""How long a process may take to be ready: large weights are read."""
END_S = 5.0
"""How long the end of a process that was killed may take to be heard of."""


class Staff:
    """Everybody who works on one run, but its proxy and the supervisors of its executions."""

    def __init__(self, config: RunConfig, folder: Path) -> None:
        self.config = config
        """With what processes turned out to be like filled in."""
        self.cells: dict[int, CellClient] = {}
        self.places: Places
        self.session: aiohttp.ClientSession
        self.supervisors: Births
        self.folder = folder.absolute()
        self._births: Births
        self._processes: dict[int, Child] = {}

    def prepare(self, stack: AsyncExitStack) -> None:
        """The run's folder and what its processes share; nothing runs yet."""
        self.places = shares.opened(self.folder, stack)

    async def open(self, stack: AsyncExitStack) -> None:
        """A new token, so that nobody obeys an earlier controller, and who can start the others."""
        token = secrets.token_urlsafe(32)
        durable.replace(self.places.token, token.encode(), is_secret=True)
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

    async def start(self, stack: AsyncExitStack) -> None:
        """All cells take requests; they end with the stack."""
        self._stop_with(stack)
        total = self.num_cells + len(self.config.cells.standalone)
        clients = await asyncio.gather(*(self._start_cell(cell) for cell in range(total)))
        self.cells.update(enumerate(clients))

    def recall(self, stack: AsyncExitStack, urls: Sequence[str]) -> None:
        """Cells of an earlier controller by their addresses, none of which is alive."""
        self._stop_with(stack)
        self.cells.update(
            {cell: CellClient(cell, url, self.session) for cell, url in enumerate(urls)}
        )

    def _stop_with(self, stack: AsyncExitStack) -> None:
        """Whatever runs by then ends with the stack."""
        stack.push_async_callback(self._stop_cells)

    @property
    def num_cells(self) -> int:
        """Standalone engines are numbered behind them."""
        return self.config.cells.count

    @property
    def pids(self) -> dict[int, int]:
        """Processes of cells and standalone engines, by cell."""
        return {cell: one.pid for cell, one in self._processes.items() if not one.is_over}

    def log(self, cell: int) -> Path:
        """What the cell's processes have to say."""
        return self.places.log(self._plan(cell).name)

    def is_over(self, cell: int) -> bool:
        return cell not in self._processes or self._processes[cell].is_over

    async def end(self, cell: int) -> None:
        """Its process is gone for certain, however it is, and everything that it started."""
        process = self._processes.pop(cell, None)
        if process is not None:
            process.signal(SIGKILL)
            await process.end(END_S)

    async def start_again(self, cell: int, checkpoint: Checkpoint | None) -> CellClient:
        """Another process, at the address by which the proxy and its routes know the cell."""
        port = urlsplit(self.cells[cell].url).port
        assert port is not None
        return await self._start_cell(cell, checkpoint, port=port)

    async def ended(self, cell: int) -> bool:
        """Waits for the end of a cell's present process; whether it ended by itself."""
        process = self._processes.get(cell)
        if process is None:
            return False
        await process.wait()
        return self._processes.get(cell) is process

    def _plan(self, cell: int) -> CellPlan:
        return cell_plan(self.config, self.places, cell)

    async def _start_cell(
        self, cell: int, checkpoint: Checkpoint | None = None, *, port: int = 0
    ) -> CellClient:
        folder = None if checkpoint is None else checkpoint.folder
        plan = replace(self._plan(cell), checkpoint=folder, port=port)
        path = write_plan(self.places.plan(plan.name), plan)
        process = await self._births.birth(plan.name, [str(path)], log=self.places.log(plan.name))
        self._processes[cell] = process
        self.note_pid(plan.name, process.pid)
        return CellClient(cell, await process.ready(READY_S), self.session)

    async def _stop_cells(self) -> None:
        stops: list[Coroutine[Any, Any, None]] = [one.stop() for one in self._processes.values()]
        await asyncio.gather(*stops)

    def note_pid(self, name: str, pid: int) -> None:
        """Where people and tests find it."""
        path = self.places.pid(name)
        path.parent.mkdir(exist_ok=True, mode=0o700)
        path.write_text(str(pid))
