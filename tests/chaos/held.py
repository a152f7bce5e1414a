"""What processes hold of the machine: memory, open files, threads."""

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """By one process at one moment."""

    memory_bytes: int
    files: int
    threads: int


def held(pid: int) -> Held | None:
    """None of a process that is not there."""
    place = Path(f"/proc/{pid}")
    try:
        pages = int((place / "statm").read_text().split()[1])
        status = (place / "status").read_text()
        files = len(list((place / "fd").iterdir()))
    except OSError:
        return None
    (threads,) = [line for line in status.splitlines() if line.startswith("Threads:")]
    return Held(memory_bytes=pages * 4096, files=files, threads=int(threads.split()[1]))


def files_but_connections_to(pid: int, ports: set[int]) -> int:
    """Open files without connections to these ports of this machine, which a pool may keep."""
    pooled = set()
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        words = line.split()
        if int(words[2].partition(":")[2], 16) in ports:
            pooled.add(f"socket:[{words[9]}]")
    found = 0
    for one in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):
            found += str(one.readlink()) not in pooled
    return found


def most(samples: list[Held]) -> Held:
    """The most of each."""
    return Held(
        memory_bytes=max(one.memory_bytes for one in samples),
        files=max(one.files for one in samples),
        threads=max(one.threads for one in samples),
    )
