"""Control groups of one sandbox, by which the kernel itself bounds what its programs use.

Both generations are used, each controller where it is found; what is not there, or may not be
used, is left out, and the levels say so.
"""

import os
import re
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from gyre.types.tasks import Level, Limits

CONTROLLERS = ("memory", "pids", "cpu")
PERIOD_US = 100_000
COUNTS_APART = (5, 14)
"""The first kernel that does what `counts_apart` asks."""
REMOVE_S = 2.0
"""How long a group may stay busy after its last process is gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CgroupParent:
    """Where groups for one controller can be made."""

    folder: Path
    is_unified: bool
    """Of the second generation."""


class ControlGroup:
    """The groups of one sandbox, under those of this process."""

    def __init__(self, name: str, limits: Limits, places: Mapping[str, CgroupParent]) -> None:
        self._folders: dict[str, Path] = {}
        for controller, place in places.items():
            settings = _settings(controller, limits, is_unified=place.is_unified)
            if settings and _make(place.folder / name, settings):
                self._folders[controller] = place.folder / name

    @property
    def levels(self) -> set[Level]:
        named: dict[str, Level] = {
            "memory": "memory-cgroup",
            "pids": "pids-cgroup",
            "cpu": "cpus-cgroup",
        }
        return {named[controller] for controller in self._folders}

    def join(self, pid: int) -> None:
        """The process and all its descendants are bounded; OSError if it cannot be."""
        for folder in set(self._folders.values()):
            (folder / "cgroup.procs").write_text(str(pid))

    def num_killed(self) -> int:
        """Processes that the kernel has killed because memory was over."""
        folder = self._folders.get("memory")
        return 0 if folder is None else num_killed_in(folder) or 0

    def remove(self) -> None:
        """Of a group in which nothing runs; one that stays busy is left where it is."""
        until = time.monotonic() + REMOVE_S
        waiting = set(self._folders.values())
        while waiting:
            for folder in list(waiting):
                with suppress(FileNotFoundError):
                    try:
                        folder.rmdir()
                    except OSError:
                        continue
                waiting.discard(folder)
            # Only behind a try, however long this process stood still before it.
            if waiting and time.monotonic() >= until:
                break
            if waiting:
                time.sleep(0.005)
        self._folders = {}


def num_killed_in(folder: Path) -> int | None:
    """What a group of either generation says of that; None where it says nothing."""
    for name in ("memory.events", "memory.oom_control"):
        with suppress(OSError):
            for line in (folder / name).read_text().splitlines():
                if line.startswith("oom_kill "):
                    return int(line.split()[1])
    return None


def places(mounts: str, membership: str) -> dict[str, CgroupParent]:
    """By controller, from the texts of /proc/self/mountinfo and /proc/self/cgroup."""
    own: dict[str, str] = {}
    for line in membership.splitlines():
        _, names, path = line.split(":", 2)
        own |= {name: path for name in names.split(",")}
    found: dict[str, CgroupParent] = {}
    for line in mounts.splitlines():
        before, _, after = line.partition(" - ")
        kind, _, options = after.split(" ", 2)
        root, mounted = before.split(" ")[3:5]
        if kind == "cgroup":
            for name in set(CONTROLLERS) & set(options.split(",")) & set(own):
                folder = _within(mounted, root, own[name])
                found[name] = CgroupParent(folder=folder, is_unified=False)
        elif kind == "cgroup2" and "" in own:
            folder = _within(mounted, root, own[""])
            found = {
                name: CgroupParent(folder=at, is_unified=True) for name, at in _open(folder)
            } | found
    return found


def here() -> dict[str, CgroupParent]:
    """Of this process; none where there are no control groups."""
    try:
        return places(
            Path("/proc/self/mountinfo").read_text(), Path("/proc/self/cgroup").read_text()
        )
    except OSError:
        return {}


@cache
def counts_apart() -> bool:
    """Whether the kernel counts a user's processes in each user namespace by itself.

    Then a limit on them holds for a sandbox alone; elsewhere it would count all of the user's. It
    never holds for root.
    """
    found = re.match(r"(\d+)\.(\d+)", os.uname().release)
    return found is not None and (int(found[1]), int(found[2])) >= COUNTS_APART


def _within(mounted: str, root: str, path: str) -> Path:
    """A group's folder, where perhaps only a part of the tree is mounted."""
    inside = path if root == "/" else path.removeprefix(root)
    return Path(mounted) / inside.lstrip("/")


def _open(folder: Path) -> list[tuple[str, Path]]:
    """Controllers that new groups have here or beside it: a group with processes hands on none."""
    found: dict[str, Path] = {}
    for at in (folder.parent, folder):
        with suppress(OSError):
            handed = (at / "cgroup.subtree_control").read_text().split()
            found |= {name: at for name in CONTROLLERS if name in handed}
    return list(found.items())


def _settings(controller: str, limits: Limits, *, is_unified: bool) -> dict[str, str]:
    match controller:
        case "memory" if limits.memory_bytes is not None:
            text = str(limits.memory_bytes)
            if is_unified:
                return {"memory.max": text, "memory.swap.max": "0"}
            return {"memory.limit_in_bytes": text, "memory.memsw.limit_in_bytes": text}
        case "pids" if limits.processes is not None:
            return {"pids.max": str(limits.processes)}
        case "cpu" if limits.cpus is not None:
            quota = str(max(1_000, int(limits.cpus * PERIOD_US)))
            if is_unified:
                return {"cpu.max": f"{quota} {PERIOD_US}"}
            return {"cpu.cfs_period_us": str(PERIOD_US), "cpu.cfs_quota_us": quota}
        case _:
            return {}


def _make(folder: Path, settings: dict[str, str]) -> bool:
    """Whether the group is there and bounded; how it swaps is no condition."""
    try:
        folder.mkdir(exist_ok=True)
    except OSError:
        return False
    for name, text in settings.items():
        try:
            (folder / name).write_text(text)
        except OSError:
            if "sw" in name:
                continue
            with suppress(OSError):
                folder.rmdir()
            return False
    return True
