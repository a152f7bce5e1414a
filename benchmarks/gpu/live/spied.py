"""What the threads of a process are at: their stacks, each with how often it was seen and its CPU.

A thread of the process itself looks, so that nothing needs to be installed and no process needs
leave to look into another. It sees a stack when the interpreter lets it: work that holds on to the
interpreter is seen late, with the CPU that it took until then.
"""

import json
import os
import sys
import threading
from collections import defaultdict
from pathlib import Path
from types import FrameType

LOOK_S = 0.005
WRITE_S = 2.0
"""How often it is written down, because a process may be killed at any time."""
TICKS = os.sysconf("SC_CLK_TCK")
NS = 1e9
MOST_FRAMES = 40

Key = tuple[str, ...]
"""A thread's name, and its functions from the outermost on."""


class Spy:
    """Looks until it is stopped, or the process ends."""

    def __init__(self, path: Path) -> None:
        """`path` has a line for each stack: how often it was seen, its CPU in seconds, itself."""
        self._path = path
        self._seen: dict[Key, list[float]] = defaultdict(lambda: [0, 0.0])
        self._cpu_s: dict[int, float] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work, name="spy", daemon=True)

    def start(self) -> "Spy":
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._thread.start()
        return self

    def stop(self) -> None:
        self._over.set()
        self._thread.join()

    def _work(self) -> None:
        looks = round(WRITE_S / LOOK_S)
        number = 0
        while not self._over.wait(LOOK_S):
            self._look()
            number += 1
            if number % looks == 0:
                self._write()
        self._look()
        self._write()

    def _look(self) -> None:
        frames = sys._current_frames()
        for thread in threading.enumerate():
            frame = frames.get(thread.ident or 0)
            if frame is None or thread is self._thread or thread.native_id is None:
                continue
            spent_s = _cpu_s(thread.native_id)
            before_s = self._cpu_s.get(thread.native_id, spent_s)
            self._cpu_s[thread.native_id] = spent_s
            found = self._seen[_key(thread.name, frame)]
            found[0] += 1
            found[1] += max(0.0, spent_s - before_s)

    def _write(self) -> None:
        ordered = sorted(self._seen.items(), key=lambda one: one[1], reverse=True)
        ordered.sort(key=lambda one: one[1][1], reverse=True)
        lines = [
            json.dumps({"seen": int(seen), "cpu_s": round(cpu_s, 6), "stack": key})
            for key, (seen, cpu_s) in ordered
        ]
        part = self._path.with_suffix(".part")
        part.write_text("".join(f"{one}\n" for one in lines))
        part.replace(self._path)


def table(path: Path, most: int = 25) -> list[str]:
    """Where the CPU went, as lines: by thread, and by the innermost function with its callers."""
    found = [json.loads(line) for line in path.read_text().splitlines()]
    threads: dict[str, float] = defaultdict(float)
    own: dict[str, float] = defaultdict(float)
    under: dict[str, float] = defaultdict(float)
    for one in found:
        thread, *stack = one["stack"]
        threads[thread] += one["cpu_s"]
        if stack:
            own[stack[-1]] += one["cpu_s"]
        for function in {*stack}:
            under[function] += one["cpu_s"]
    lines = [f"{path.name}: {sum(threads.values()):.2f} s of CPU"]
    for title, sums in (("thread", threads), ("own", own), ("with what it calls", under)):
        ordered = sorted(sums.items(), key=lambda one: one[1], reverse=True)[:most]
        lines += [f"  {title:18} {cpu_s:8.3f} s  {name}" for name, cpu_s in ordered]
    return lines


def _key(thread: str, frame: FrameType | None) -> Key:
    names: list[str] = []
    while frame is not None and len(names) < MOST_FRAMES:
        code = frame.f_code
        file = "/".join(Path(code.co_filename).parts[-2:])
        names.append(f"{file}:{code.co_qualname}")
        frame = frame.f_back
    return (thread, *reversed(names))


def _cpu_s(native_id: int) -> float:
    """Of one thread so far; 0 where the kernel does not say."""
    place = Path(f"/proc/self/task/{native_id}")
    try:
        # In nanoseconds, where the kernel counts them; else in ticks of ten milliseconds.
        return int((place / "schedstat").read_text().split()[0]) / NS
    except (OSError, IndexError, ValueError):
        pass
    try:
        stat = (place / "stat").read_text().rsplit(")", 1)[1].split()
    except (OSError, IndexError):
        return 0.0
    return (int(stat[11]) + int(stat[12])) / TICKS
