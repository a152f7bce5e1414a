"""What a run used, by what its cells did meanwhile: serve, train, switch, wait.

Rule 1: a measurement is spread evenly over its time; what several roles share of it they share by
their time.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from gyre.observability.history.cells import CellSpan
from gyre.scheduler.cells import CellState
from gyre.types.run_events import UseMeasured

ROLES = ("serving", "training", "switching", "waiting")
OTHERS = ("executions", "proxy", "controller")
"""Who uses processors beside the cells."""
_ROLE = {
    CellState.SERVING: "serving",
    CellState.TRAINING: "training",
    CellState.ENTERING: "switching",
    CellState.LEAVING: "switching",
}
"""All others wait: for weights, for a publication, for a process."""

Spans = Callable[[int, float, float], Iterable[CellSpan]]
"""States of a cell or engine in a window, without gaps."""


@dataclass(slots=True)
class RoleUsage:
    """What a cell used in one role."""

    seconds: float = 0.0
    """In the role."""
    cpu_s: float = 0.0
    device_s: float = 0.0
    """Seconds in which its device was busy."""
    device_of_s: float = 0.0
    """Seconds of the role in which its device was measured."""

    def add(self, other: "RoleUsage") -> None:
        self.seconds += other.seconds
        self.cpu_s += other.cpu_s
        self.device_s += other.device_s
        self.device_of_s += other.device_of_s

    @property
    def cores(self) -> float | None:
        """Processors in use on average; None where no time was measured."""
        return self.cpu_s / self.seconds if self.seconds else None

    @property
    def busy(self) -> float | None:
        """Part of the time in which the device worked; None where it was not measured."""
        return self.device_s / self.device_of_s if self.device_of_s else None


_NOTHING = RoleUsage()


@dataclass(frozen=True, slots=True)
class UsageSample:
    """What was used between two measurements."""

    at_s: float
    seconds: float
    """More than none."""
    cells: Mapping[int, Mapping[str, RoleUsage]]
    """By cell or standalone engine, and by role."""
    roles: Mapping[str, RoleUsage]
    """Over all cells."""
    others: Mapping[str, float]
    """Seconds of processors; those that could not be measured are missing."""

    @property
    def from_s(self) -> float:
        return max(0.0, self.at_s - self.seconds)

    def role(self, role: str) -> RoleUsage:
        """Over all cells; nothing where none was in it."""
        return self.roles.get(role, _NOTHING)

    def cores(self, who: str) -> float | None:
        """Processors in use, by all cells in a role or by one of the others."""
        if who in OTHERS:
            return self.others[who] / self.seconds if who in self.others else None
        return self.role(who).cpu_s / self.seconds

    @property
    def all_cores(self) -> float:
        """Of all processes together."""
        of_cells = sum(part.cpu_s for part in self.roles.values())
        return (of_cells + sum(self.others.values())) / self.seconds

    @property
    def busy(self) -> float | None:
        """Of all devices together."""
        looked_s = sum(part.device_of_s for part in self.roles.values())
        return sum(part.device_s for part in self.roles.values()) / looked_s if looked_s else None


def used(now: float, fact: UseMeasured, spans: Spans, *, num: int) -> UsageSample:
    """A measurement that ends now, of so many cells and engines."""
    others = {"executions": fact.executions_s, "controller": fact.controller_s}
    if fact.proxy_s is not None:
        others["proxy"] = fact.proxy_s
    cells = {cell: _parts(cell, now, fact, spans) for cell in fact.cells if cell < num}
    return UsageSample(now, fact.seconds, cells, added(cells.values()), others)


def added(cells: Iterable[Mapping[str, RoleUsage]]) -> dict[str, RoleUsage]:
    """By role."""
    found: dict[str, RoleUsage] = {}
    for parts in cells:
        for role, part in parts.items():
            found.setdefault(role, RoleUsage()).add(part)
    return found


def _parts(cell: int, now: float, fact: UseMeasured, spans: Spans) -> dict[str, RoleUsage]:
    begin_s = max(0.0, now - fact.seconds)
    whole_s = now - begin_s
    found: dict[str, RoleUsage] = {}
    device = fact.devices.get(cell)
    for span in spans(cell, begin_s, now):
        seconds = span.end_s - span.start_s
        part = RoleUsage(seconds=seconds, cpu_s=fact.cells[cell] * seconds / whole_s)
        if device is not None:
            part.device_s, part.device_of_s = device.busy * seconds, seconds
        found.setdefault(_ROLE.get(span.state, "waiting"), RoleUsage()).add(part)
    return found
