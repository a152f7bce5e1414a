"""How busy accelerators are, and whose: what NVML says, where it is installed."""

from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gyre.types.run_events import DeviceUse

try:
    import pynvml
except ModuleNotFoundError:
    pynvml = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One accelerator at one moment."""

    minor: int
    """Its number among the machine's, as in /dev/nvidia0."""
    busy: float
    used_bytes: int
    total_bytes: int
    pids: frozenset[int]
    """Of processes that compute on it; a container is not told."""


class Devices:
    """All that this machine has."""

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
            pids=frozenset(one.pid for one in nvml.nvmlDeviceGetComputeRunningProcesses(handle)),
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
    mine = [one for one in devices if not one.pids.isdisjoint(pids)]
    if not mine and devices:
        files = {name for pid in pids for name in (held or held_open)(pid)}
        mine = [one for one in devices if f"/dev/nvidia{one.minor}" in files]
    if not mine:
        return None
    return DeviceUse(
        busy=sum(one.busy for one in mine) / len(mine),
        used_bytes=sum(one.used_bytes for one in mine),
        total_bytes=sum(one.total_bytes for one in mine),
    )


def held_open(pid: int) -> list[str]:
    """Files that a process has open."""
    found = []
    with suppress(OSError):
        for one in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                found.append(str(one.readlink()))
    return found
