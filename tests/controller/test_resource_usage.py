"""What processes of a run use: real ones by /proc, devices as NVML would tell of them."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.controller.support.fake_run_loop import FakeRunLoop
from tests.waiting import until

from gyre.controller.resource_usage import (
    FIRST_S,
    MOST_S,
    Device,
    Devices,
    ProcessMeter,
    ProcessRoots,
    ProcessTable,
    ResourceSampler,
    held_open,
    pause_s,
    use_of,
)
from gyre.types.run_events import DeviceUse

BURN = """
import os, subprocess, sys, time
{before}
def burn():
    while time.process_time() < {own}: pass
if {below}:
    subprocess.run([sys.executable, "-S", "-c",
                    "import time\\nwhile time.process_time() < {below}: pass"])
burn()
took = os.times()
print(took.user + took.system, took.children_user + took.children_system, flush=True)
sys.stdin.read()
"""
NEARLY_S = 5 / os.sysconf("SC_CLK_TCK")
"""Five ticks of the clock that the kernel counts by."""


def nearly(*seconds):
    return pytest.approx(sum(seconds), abs=NEARLY_S * len(seconds))


@pytest.fixture
def burnt():
    """Processes that have taken so much or a little more, say how much, and wait."""
    started = []

    def start(own, below=0.0, before="", **how):
        source = BURN.format(own=own, below=below, before=before)
        process = subprocess.Popen(
            [sys.executable, "-S", "-c", source],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            **how,
        )
        started.append(process)
        process.took_s, process.below_s = map(float, process.stdout.readline().split())
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def ended(process):
    process.communicate()
    return process.pid


def test_a_child_that_has_ended_counts_with_its_parent_once(burnt):
    process = burnt(0.1, below=0.2)
    meter = ProcessMeter()
    first = meter.took(ProcessTable.now(), process.pid)

    assert nearly(process.took_s, process.below_s) == first
    assert nearly(0.0) == meter.took(ProcessTable.now(), process.pid)


def test_a_process_may_be_called_anything(burnt):
    """The kernel cuts names after fifteen bytes, in the middle of a letter where that is there."""
    process = burnt(0.0, before=r"open('/proc/self/comm', 'wb').write(b') R 1 (\xd0')")
    found = ProcessTable.now().running[process.pid]

    assert b"(" + b") R 1 (\xd0" + b")" in Path(f"/proc/{process.pid}/stat").read_bytes()
    assert (os.getpid(), process.pid) == (found.parent, found.pid)


def test_who_is_gone_took_nothing_that_is_known(burnt):
    process = burnt(0.05)
    meter = ProcessMeter()
    meter.took(ProcessTable.now(), process.pid)
    ended(process)

    assert meter.took(ProcessTable.now(), process.pid) is None
    assert meter.took(ProcessTable.now(), None) is None


def test_another_process_in_its_place_is_counted_from_its_beginning(burnt):
    meter = ProcessMeter()
    first, other = burnt(0.3), burnt(0.1)
    table = ProcessTable.now()
    meter.took(table, first.pid)

    assert nearly(other.took_s) == meter.took(table, other.pid)


def test_executions_are_those_under_the_nursery_and_those_that_were_adopted(burnt, tmp_path):
    folder = tmp_path / "attempts" / "g00000-00"
    folder.mkdir(parents=True)
    with (folder / "supervisor.log").open("wb") as log:
        adopted = burnt(0.2, stderr=log, start_new_session=True)
    cell, fork_server, proxy = burnt(0.1), burnt(0.0, below=0.1), burnt(0.05)
    roots = ProcessRoots(
        cells={2: cell.pid, 3: ended(burnt(0.0))},
        proxies=[proxy.pid],
        fork_clients=[fork_server.pid],
        attempts=tmp_path / "attempts",
    )
    using = ResourceSampler()
    found = using.measured(roots)

    assert {2} == set(found.cells)
    assert nearly(cell.took_s) == found.cells[2]
    assert nearly(adopted.took_s, fork_server.took_s, fork_server.below_s) == found.executions_s
    assert nearly(proxy.took_s) == found.proxy_s
    assert 0 < found.controller_s
    assert {} == found.devices
    again = using.measured(roots)
    assert nearly(0.0, 0.0) == again.executions_s
    assert found.controller_s > again.controller_s


def test_it_is_measured_again_and_again(tmp_path):
    loop = FakeRunLoop()
    heard = loop.recorded
    roots = ProcessRoots(cells={}, proxies=[], fork_clients=[], attempts=tmp_path)

    async def two():
        task = asyncio.create_task(ResourceSampler(first_s=0.01).work(loop, lambda: roots))
        await until(lambda: len(heard) == 2)
        task.cancel()

    asyncio.run(two())
    assert all(0.01 <= one.seconds for one in heard)
    assert [None, None] == [one.proxy_s for one in heard]


def test_a_long_run_is_measured_less_often():
    assert [FIRST_S, FIRST_S, 10.0, MOST_S] == [pause_s(one) for one in (0, 60, 1000, 10**6)]


class Nvml:
    """A driver with two devices, the second of which cannot be asked."""

    class NVMLError(Exception):
        pass

    def nvmlDeviceGetCount(self):
        return 2

    def nvmlDeviceGetHandleByIndex(self, place):
        if place:
            raise self.NVMLError
        return place

    def nvmlDeviceGetMinorNumber(self, handle):
        return 5

    def nvmlDeviceGetMemoryInfo(self, handle):
        return SimpleNamespace(used=30, total=80)

    def nvmlDeviceGetUtilizationRates(self, handle):
        return SimpleNamespace(gpu=75)

    def nvmlDeviceGetComputeRunningProcesses(self, handle):
        return [SimpleNamespace(pid=os.getpid())]


def test_a_cell_has_the_devices_that_its_processes_compute_on(tmp_path):
    roots = ProcessRoots(
        cells={0: os.getpid(), 1: os.getppid()}, proxies=[], fork_clients=[], attempts=tmp_path
    )
    found = ResourceSampler(Devices(Nvml())).measured(roots)

    assert DeviceUse(busy=0.75, used_bytes=30, total_bytes=80) == found.devices[0]


class GoneNvml(Nvml):
    """A driver that ended after it was found."""

    def nvmlDeviceGetCount(self):
        raise self.NVMLError


def test_a_driver_that_is_gone_is_as_none():
    assert [] == Devices(GoneNvml()).now()


def device(minor, busy, *pids):
    return Device(minor=minor, busy=busy, used_bytes=10, total_bytes=40, pids=frozenset(pids))


def test_several_devices_of_a_cell_are_one():
    found = use_of([device(0, 0.5, 7), device(1, 1.0, 8), device(2, 0.0, 9)], {7, 8})

    assert DeviceUse(busy=0.75, used_bytes=20, total_bytes=80) == found


def test_in_a_container_the_files_that_are_open_tell():
    held = {7: ["/dev/null", "/dev/nvidia1"], 8: ["/dev/nvidiactl"]}.__getitem__
    devices = [device(0, 0.5, 4711), device(1, 0.25, 4712)]

    assert 0.25 == use_of(devices, {7, 8}, held).busy
    assert use_of(devices, {8}, held) is None
    assert use_of([], {7}, held) is None


def test_files_that_a_process_has_open_are_known(tmp_path):
    with (tmp_path / "file").open("w"):
        assert str(tmp_path / "file") in held_open(os.getpid())
    assert [] == held_open(2**22 + 1)
