"""What holds programs of an execution back, and how much they may use."""

from dataclasses import dataclass, field
from typing import Literal

Level = Literal[
    "files",
    "processes",
    "network",
    "privileges",
    "seccomp",
    "memory",
    "memory-cgroup",
    "pids",
    "pids-cgroup",
    "cpus-cgroup",
    "disk",
]
"""One thing that is in force: what a program cannot see or reach, or cannot have more of.

`memory`, `pids` and `disk` are bounded by somebody who looks and kills; `-cgroup` by the kernel.
"""
Keep = Literal["all", "scored", "unscored", "none"]
"""Whose frozen states stay on the disk when their executions are closed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The most that all programs of one execution have together; None: no bound."""

    memory_bytes: int | None = None
    processes: int | None = None
    """Threads count too."""
    cpus: float | None = None
    """Cores; in force where there are control groups."""
    disk_bytes: int | None = None
    """What they write: workspace, home and temporary files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxSpec:
    """The sandbox that an execution runs in."""

    kind: Literal["process", "local", "docker"] = "process"
    root: str | None = None
    """Folder that programs see as their root; None: the system folders of this machine."""
    readable: tuple[str, ...] = ()
    """Folders and files of this machine that programs read under the same paths."""
    image: str | None = None
    """Container image, where a task names none."""
    runtime: str | None = None
    """What a container daemon runs containers with; None: its default."""
    socket: str | None = None
    """Where a container daemon listens; None: where Docker does."""
    limits: Limits = field(default_factory=Limits)
    """At most; a task may name less."""
    require: tuple[Level, ...] = ()
    """What must be in force, or nothing is launched."""
    keep: Keep = "all"
