"""CPU and GPU use, sampled into the journal.

What a run uses, measured every few seconds for its journal: processors, and accelerators.

Rule 1: measuring delays nothing: it is done beside the loop, less often the longer a run lasts,
and what cannot be read is left out.
"""

import asyncio
import os
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gyre.cluster.procfs import ProcessMeter, ProcessMeters, ProcessTable
from gyre.controller.run_loop import RunLoop
from gyre.types.run_events import DeviceUse, UseMeasured

try:
    import pynvml
except ModuleNotFoundError:
    pynvml = None


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
