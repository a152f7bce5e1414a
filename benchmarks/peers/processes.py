"""Processes under measurement: started, awaited, and their CPU seconds and memory read."""

import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
SETTLE_S = 0.25
"""A tree of processes that used under 2 % of a core for this long has finished its work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cpu:
    """CPU seconds of a tree of processes since each began."""

    total_s: float
    """From the scheduler's own clock, in nanoseconds; reaped children in ticks."""
    user_s: float
    """In ticks of 10 ms on most machines, like system_s."""
    system_s: float

    def since(self, earlier: "Cpu") -> "Cpu":
        return Cpu(
            total_s=self.total_s - earlier.total_s,
            user_s=self.user_s - earlier.user_s,
            system_s=self.system_s - earlier.system_s,
        )


def tree(pid: int) -> list[int]:
    """The process and everything it has started, directly or not, that still lives."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (fields := _stat(int(entry.name))):
            children.setdefault(int(fields[1]), []).append(int(entry.name))
    found, waiting = [], [pid]
    while waiting:
        one = waiting.pop()
        found.append(one)
        waiting.extend(children.get(one, []))
    return found


def cpu(pid: int) -> Cpu:
    total = user = system = 0.0
    for one in tree(pid):
        fields = _stat(one)
        if fields is None:
            continue
        # Linux's clock id of another process's CPU time, as clock_getcpuclockid(3) computes it.
        total += time.clock_gettime((~one << 3) | 2)
        total += (int(fields[13]) + int(fields[14])) / TICKS
        user += (int(fields[11]) + int(fields[13])) / TICKS
        system += (int(fields[12]) + int(fields[14])) / TICKS
    return Cpu(total_s=total, user_s=user, system_s=system)


def settled_cpu(pid: int, most_s: float = 60.0) -> Cpu:
    """CPU once the tree is idle, so that work put off until after the replies is counted."""
    deadline = time.monotonic() + most_s
    before = cpu(pid)
    while time.monotonic() < deadline:
        time.sleep(SETTLE_S)
        now = cpu(pid)
        if now.total_s - before.total_s < 0.02 * SETTLE_S:
            return now
        before = now
    raise TimeoutError(f"process {pid} still works {most_s:g} s after its last call")


def rss_bytes(pid: int) -> int:
    """Resident memory of the tree; pages shared between its processes count in each."""
    resident = 0
    for one in tree(pid):
        statm = Path(f"/proc/{one}/statm")
        if statm.exists():
            resident += int(statm.read_text().split()[1]) * PAGE_BYTES
    return resident


def _stat(pid: int) -> list[str] | None:
    """Fields of /proc/pid/stat after the command's name: state, parent, ..."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return text[text.rindex(")") + 2 :].split()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def running(
    command: Sequence[str], *, port: int, probe: str, environment: Mapping[str, str], log: Path
) -> Iterator[int]:
    """Yields the pid once GET `probe` answers 200; ends the process and its group after."""
    with log.open("ab") as output:
        process = subprocess.Popen(
            command,
            env={**os.environ, **environment},
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        _wait_ready(process, port, probe, log)
        yield process.pid
    finally:
        _end(process)


def _wait_ready(process: subprocess.Popen[bytes], port: int, probe: str, log: Path) -> None:
    deadline = time.monotonic() + 180
    while time.monotonic() < deadline:
        if process.poll() is not None:
            tail = log.read_text(errors="replace")[-4000:]
            raise RuntimeError(f"{process.args!r} ended with {process.returncode}:\n{tail}")
        with suppress(OSError):
            get(port, probe)
            return
        time.sleep(0.1)
    raise TimeoutError(f"{process.args!r}: no answer from {probe} on port {port}")


def get(port: int, path: str) -> bytes:
    """Body of a 200; OSError for anything else."""
    connection = HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        if answer.status != 200:
            raise ConnectionError(f"GET {path}: status {answer.status}")
        return answer.read()
    finally:
        connection.close()


def _end(process: subprocess.Popen[bytes]) -> None:
    for how in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, how)
            process.wait(10)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            continue
        return
