"""CPU and GPU use, sampled every few seconds into the journal.

Rule 1: measuring delays nothing: it is done beside the loop, less often the longer a run lasts,
and what cannot be read is left out.
Rule 2: a process that has ended counts with the parent that waited for it, so that nothing is lost
and nothing counts twice.
"""

import asyncio
import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gyre.controller.run_loop import RunLoop
from gyre.types.run_events import DeviceUse, UseMeasured

try:
    import pynvml
except ModuleNotFoundError:
    pynvml = None


PROC = Path("/proc")
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessStat:
    """One process, as /proc has it."""

    pid: int
    parent: int
    session: int
    started: int
    """Ticks after the machine; with its number it names a process for good."""
    own_s: float
    waited_s: float
    """Of children that have ended, and theirs."""


class ProcessTable:
    """All processes of the machine at one moment."""

    def __init__(self, running: Mapping[int, ProcessStat]) -> None:
        self.running = running
        self._children: dict[int, list[int]] = {}
        for one in running.values():
            self._children.setdefault(one.parent, []).append(one.pid)

    @classmethod
    def now(cls) -> "ProcessTable":
        found = (_read(int(one.name)) for one in PROC.iterdir() if one.name.isdecimal())
        return cls({one.pid: one for one in found if one is not None})

    def under(self, root: int) -> Iterator[ProcessStat]:
        """The process and its descendants; nothing where it has ended."""
        waiting = [root]
        while waiting:
            if (found := self.running.get(waiting.pop())) is not None:
                yield found
                waiting += self._children.get(found.pid, ())

    def alone(self, pid: int) -> float | None:
        """What one process took itself."""
        found = self.running.get(pid)
        return None if found is None else found.own_s

    def leaders(self, but: Collection[int]) -> Iterator[int]:
        """Those that lead a session, but these."""
        return (pid for pid, one in self.running.items() if one.session == pid and pid not in but)


class ProcessMeter:
    """Processor seconds of a process and all below it, from one reading to the next."""

    def __init__(self) -> None:
        self._last: tuple[tuple[int, int], float] | None = None
        """Which process it was, and all that it had taken."""

    def took(self, table: ProcessTable, root: int) -> float | None:
        """Since the last reading of this process, or since it began; None where it is gone."""
        found = table.running.get(root)
        if found is None:
            self._last = None
            return None
        who = (found.pid, found.started)
        total = sum(one.own_s + one.waited_s for one in table.under(found.pid))
        before = self._last[1] if self._last is not None and self._last[0] == who else 0.0
        self._last = (who, total)
        # What left the tree with its seconds, as a daemon does, cannot make it negative.
        return max(0.0, total - before)


class ProcessMeters:
    """Processor seconds of several processes and all below them, whose number changes."""

    def __init__(self) -> None:
        self._meters: dict[int, ProcessMeter] = {}

    def took(self, table: ProcessTable, roots: Collection[int]) -> float | None:
        """All together; None where all of them are gone."""
        self._meters = {pid: self._meters.get(pid, ProcessMeter()) for pid in roots}
        took = [one.took(table, pid) for pid, one in self._meters.items()]
        known = [seconds for seconds in took if seconds is not None]
        return sum(known) if known else None


def _read(pid: int) -> ProcessStat | None:
    try:
        found = (PROC / str(pid) / "stat").read_bytes()
    except OSError:
        return None
    # Its name is in brackets, and may hold any bytes: brackets, blanks, half a letter.
    fields = found[found.rindex(b")") + 2 :].split()
    user, system, waited_user, waited_system = (int(one) * _TICK_S for one in fields[11:15])
    return ProcessStat(
        pid=pid,
        parent=int(fields[1]),
        session=int(fields[3]),
        started=int(fields[19]),
        own_s=user + system,
        waited_s=waited_user + waited_system,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """Use of one accelerator at one moment."""

    minor: int
    """Its number among the machine's, as in /dev/nvidia0."""
    busy: float
    used_bytes: int
    total_bytes: int
    pids: frozenset[int]
    """Of processes that compute on it; in a container they are not known."""


class Devices:
    """Reads the use of all accelerators of this machine."""

    def __init__(self, nvml: Any) -> None:
        """`nvml` has the functions of pynvml, and was begun."""
        self._nvml = nvml

    @classmethod
    def found(cls) -> "Devices | None":
        """None without pynvml, or without a driver."""
        if pynvml is None:
            return None
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError:
            return None
        return cls(pynvml)

    def now(self) -> list[Device]:
        """Those that can be asked."""
        found = []
        for place in range(self._count()):
            with suppress(self._nvml.NVMLError):
                found.append(self._device(place))
        return found

    def _count(self) -> int:
        """None of them where the driver itself is gone."""
        with suppress(self._nvml.NVMLError):
            return int(self._nvml.nvmlDeviceGetCount())
        return 0

    def _device(self, place: int) -> Device:
        nvml = self._nvml
        handle = nvml.nvmlDeviceGetHandleByIndex(place)
        memory = nvml.nvmlDeviceGetMemoryInfo(handle)
        return Device(
            minor=nvml.nvmlDeviceGetMinorNumber(handle),
            busy=nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100,
            used_bytes=memory.used,
            total_bytes=memory.total,
            pids=frozenset(
                process.pid for process in nvml.nvmlDeviceGetComputeRunningProcesses(handle)
            ),
        )


def use_of(
    devices: Sequence[Device],
    pids: Collection[int],
    held: Callable[[int], Iterable[str]] | None = None,
) -> DeviceUse | None:
    """Of the devices that these processes compute on; None where they have none.

    In a container the driver does not know their numbers, and the files that they have `held`
    open tell, which /proc knows.
    """
    mine = [device for device in devices if not device.pids.isdisjoint(pids)]
    if not mine and devices:
        files = {name for pid in pids for name in (held or held_open)(pid)}
        mine = [device for device in devices if f"/dev/nvidia{device.minor}" in files]
    if not mine:
        return None
    return DeviceUse(
        busy=sum(device.busy for device in mine) / len(mine),
        used_bytes=sum(device.used_bytes for device in mine),
        total_bytes=sum(device.total_bytes for device in mine),
    )


def held_open(pid: int) -> list[str]:
    """Files that a process has open."""
    found = []
    with suppress(OSError):
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                found.append(str(descriptor.readlink()))
    return found


FIRST_S, MOST_S = 2.0, 30.0
PART = 100
"""A pause is this part of the run so far, so that a long one has not many more facts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessRoots:
    """Process ids of a run on this machine; all that they started counts with them."""

    cells: Mapping[int, int]
    proxies: Collection[int]
    fork_clients: Collection[int]
    """Parents of the supervisors that this controller started."""
    attempts: Path
    """Folders of executions, where supervisors of earlier controllers have their logs."""


class ResourceSampler:
    """Measures the processors and accelerators that a run uses, for one controller."""

    def __init__(self, devices: Devices | None = None, *, first_s: float = FIRST_S) -> None:
        """`first_s` is the pause of a run that has just begun."""
        self._devices = devices
        self._first_s = first_s
        self._began_s = time.monotonic()
        self._cells: dict[int, ProcessMeter] = {}
        self._proxies = ProcessMeters()
        self._executions = ProcessMeters()
        self._controller_s = 0.0

    @classmethod
    def found(cls) -> "ResourceSampler":
        """A sampler of all that this machine can measure."""
        return cls(Devices.found())

    async def work(self, loop: RunLoop, roots: Callable[[], ProcessRoots]) -> None:
        """Measures until it is cancelled; the first time what there was before the run began."""
        await asyncio.to_thread(self.measured, roots())
        while True:
            await asyncio.sleep(pause_s(loop.now, self._first_s))
            loop.record(await asyncio.to_thread(self.measured, roots()))

    def measured(self, roots: ProcessRoots) -> UseMeasured:
        """Since the last time, or since the processes began."""
        now_s = time.monotonic()
        seconds, self._began_s = now_s - self._began_s, now_s
        table = ProcessTable.now()
        devices = [] if self._devices is None else self._devices.now()
        return UseMeasured(
            seconds=seconds,
            cells=self._of_cells(table, roots.cells),
            # Supervisors that an earlier controller started are no children of this one.
            executions_s=self._executions.took(
                table, {*roots.fork_clients, *_adopted(table, roots)}
            )
            or 0.0,
            proxy_s=self._proxies.took(table, roots.proxies),
            controller_s=self._own(table),
            devices=_by_cell(table, devices, roots.cells),
        )

    def _of_cells(self, table: ProcessTable, pids: Mapping[int, int]) -> dict[int, float]:
        took = {
            cell: self._cells.setdefault(cell, ProcessMeter()).took(table, pid)
            for cell, pid in pids.items()
        }
        return {cell: seconds for cell, seconds in took.items() if seconds is not None}

    def _own(self, table: ProcessTable) -> float:
        """Without what it started."""
        total = table.alone(os.getpid()) or 0.0
        took, self._controller_s = total - self._controller_s, total
        return took


def pause_s(now_s: float, first_s: float = FIRST_S) -> float:
    """Until the next measurement of a run that has gone on for so long."""
    return max(first_s, min(MOST_S, now_s / PART))


def _adopted(table: ProcessTable, roots: ProcessRoots) -> list[int]:
    ours = {os.getpid(), *roots.cells.values()}
    for root in (*roots.fork_clients, *roots.proxies):
        ours |= {process.pid for process in table.under(root)}
    return [pid for pid in table.leaders(ours) if _logs_under(pid, roots.attempts)]


def _logs_under(pid: int, folder: Path) -> bool:
    """Whether it writes its errors there, as no other program would."""
    try:
        return folder in Path(f"/proc/{pid}/fd/2").readlink().parents
    except OSError:
        return False


def _by_cell(
    table: ProcessTable, devices: Sequence[Device], pids: Mapping[int, int]
) -> dict[int, DeviceUse]:
    if not devices:
        return {}
    found = {
        cell: use_of(devices, {process.pid for process in table.under(pid)})
        for cell, pid in pids.items()
    }
    return {cell: use for cell, use in found.items() if use is not None}
