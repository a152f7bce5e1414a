"""The cells and standalone engines of a run, each with the client of its present process."""

from collections.abc import Mapping

from gyre.cell.client import CellClient
from gyre.controller.run_loop import RunLoop
from gyre.scheduler.messages import CellDied
from gyre.types.ids import CellId


class CellClients(dict[int, CellClient]):
    """The client of each cell's present process, by number; standalone engines follow the cells."""

    def __init__(self, clients: Mapping[int, CellClient] | None = None) -> None:
        super().__init__(clients or {})
        self._reported: dict[int, CellClient] = {}

    def report_death(self, client: CellClient, loop: RunLoop) -> None:
        """Its process is gone, unless another has replaced it.

        Several components notice the same death, which is recorded once.
        """
        cell = client.number
        if self[cell] is client and self._reported.get(cell) is not client:
            self._reported[cell] = client
            loop.record(CellDied(cell=CellId(cell)))

    def forget_death(self, client: CellClient) -> None:
        """Its cell has recovered with it: what was reported of it before concerned a dead cell."""
        if self._reported.get(client.number) is client:
            del self._reported[client.number]
