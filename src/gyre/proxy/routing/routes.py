"""Where each execution's calls go, by order of a controller: obeyed, and never chosen here."""

from collections.abc import Iterable, Mapping

from gyre.proxy.routing.seats import EngineSlots, RoutedCall
from gyre.types.errors import RequestError
from gyre.types.ids import EngineName


class Routes:
    """A table with a version, so that an order that comes late undoes nothing."""

    def __init__(self) -> None:
        self.version = 0
        self._engines: dict[str, EngineName] = {}

    def __len__(self) -> int:
        return len(self._engines)

    def engine(self, execution: str) -> EngineName | None:
        """None: its calls wait."""
        return self._engines.get(execution)

    def put(self, version: int, changes: Mapping[str, EngineName | None]) -> bool:
        """Routes that change, None for those that end; whether the order was new.

        The order that was carried out last may come again; an older one is refused.
        """
        if version < self.version:
            found = f"expected {self.version} or later, found {version}"
            raise RequestError(f"routes: {found}: a newer order was carried out", where="version")
        if version == self.version:
            return False
        self.version = version
        for execution, engine in changes.items():
            if engine is None:
                self._engines.pop(execution, None)
            else:
                self._engines[execution] = engine
        return True

    def misplaced(self, rooms: Iterable[EngineSlots]) -> list[RoutedCall]:
        """Calls that are not where their execution belongs."""
        return [
            call
            for room in rooms
            for call in room.calls
            if self.engine(call.execution) != room.name
        ]
