"""The request that creates a container: image, mounts, user, limits and security options."""

import os
import resource
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gyre.sandboxes.docker.image import Image
from gyre.sandboxes.local.mounts import NAME, WORKDIR
from gyre.sandboxes.local.sandbox import OOM_SCORE
from gyre.sandboxes.process_tree import MARK
from gyre.types.errors import SandboxError
from gyre.types.tasks import Command, Level, Limits

SOCKET = "/var/run/docker.sock"
LABEL = "gyre.sandbox"
HOME = f"/home/{NAME}"
HOLD = "exec 3<&0; while :; do cat <&3 >/dev/null & wait $! && exit; done"
"""The first process of a container: reaps orphans, ends with its input, and ends all others."""
FILTERING = (None, "runc", "crun")
"""Runtimes that put the daemon's filter of system calls before programs; others have their ways."""
BOUNDS = {"nofile": (resource.RLIMIT_NOFILE, 2**16), "nproc": (resource.RLIMIT_NPROC, 2**15)}
"""Open files of a program and processes of its user, where this machine allows so many."""
HOLDERS = 2
"""Processes that this takes, beside those that are allowed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """What containers of a sandbox are made of: an image or its build, folders, the runtime."""

    folder: Path
    """For files that are on their way."""
    home: Path
    image: str | None = None
    build: Path | None = None
    """Folder with a Dockerfile, where no image is named."""
    build_s: float = 600.0
    socket: str = SOCKET
    runtime: str | None = None
    """What the daemon runs containers with; None: its default."""
    workdir: str | None = None
    """Where the workspace stands; None: where the image's programs begin."""
    readable: tuple[Path, ...] = ()
    """Of this machine, under the same paths."""
    writable: Mapping[str, Path] = field(default_factory=dict)
    """Of this machine, by their paths inside; what is not there is left out."""
    fills: bool = True
    """Whether the workspace gets what the image has in its place, below what it holds already."""


class ContainerKind:
    """The containers of one sandbox, as this daemon can make them."""

    def __init__(
        self, place: Container, image: Image, info: Mapping[str, Any], most: Limits
    ) -> None:
        """`info` is what the daemon says of itself."""
        self.image = image
        self._place = place
        self._info = info
        self._most = most

    @property
    def workdir(self) -> str:
        """Where the workspace stands."""
        return self._place.workdir or self.image.workdir or WORKDIR

    @property
    def levels(self) -> tuple[Level, ...]:
        found: set[Level] = {"files", "processes", "network", "privileges"}
        if self._has("seccomp") and self._place.runtime in FILTERING:
            found.add("seccomp")
        if self._most.memory_bytes is not None and self._info.get("MemoryLimit"):
            found |= {"memory", "memory-cgroup"}
        if self._most.processes is not None and self._info.get("PidsLimit"):
            found |= {"pids", "pids-cgroup"}
        if self._most.cpus is not None and self._info.get("CpuCfsQuota"):
            found.add("cpus-cgroup")
        if self._most.disk_bytes is not None and self._sees_layers:
            found.add("disk")
        return tuple(sorted(found))

    def body(self, mark: str, workspace: Path, command: Command) -> dict[str, Any]:
        """A container in which nothing but its first process runs."""
        return {
            "Image": self.image.name,
            "Entrypoint": ["sh", "-c", HOLD],
            "Cmd": [],
            "User": self._user,
            "WorkingDir": self.workdir,
            "Hostname": "gyre",
            "Labels": {LABEL: mark},
            "OpenStdin": True,
            "StdinOnce": True,
            "AttachStdin": True,
            "Healthcheck": {"Test": ["NONE"]},
            "HostConfig": self._host() | {"Mounts": self._mounts(workspace, command)},
        }

    def environment(self, mark: str, command: Command) -> dict[str, str]:
        """Of a program, on top of the image's."""
        own = {"HOME": HOME, "TMPDIR": "/tmp", MARK: mark}
        return {"PWD": self.workdir} | command.variables | own

    def written(self, workspace: Path, found: Mapping[str, Any]) -> list[Path]:
        """Folders of this machine that the programs of a container write to."""
        folders = [workspace, self._place.home, *self._place.writable.values()]
        layer = ((found.get("GraphDriver") or {}).get("Data") or {}).get("UpperDir")
        return [*folders, Path(layer)] if layer and self._sees_layers else folders

    def refuse_other_runtime(self, found: Mapping[str, Any]) -> None:
        """SandboxError for a container that runs with what the daemon likes, as Podman has it."""
        wanted, used = self._place.runtime, found["HostConfig"].get("Runtime")
        if wanted is not None and wanted != used:
            message = f"runtime of a container: expected {wanted}, found {used}"
            raise SandboxError(message, retryable=False)

    def _host(self) -> dict[str, Any]:
        """What holds the container back."""
        secured = ["no-new-privileges"]
        if self._has("selinux"):
            # Folders of an execution bear the labels of the process that made them.
            secured.append("label=disable")
        host: dict[str, Any] = {
            "NetworkMode": "none",
            "IpcMode": "private",
            "AutoRemove": True,
            "CapDrop": ["ALL"],
            "SecurityOpt": secured,
            "LogConfig": {"Type": "none"},
            "OomScoreAdj": int(OOM_SCORE),
            "Ulimits": [_bound(name, most) for name, most in _bounds().items()],
        }
        if self._place.runtime is not None:
            host["Runtime"] = self._place.runtime
        if self._has("userns"):
            host["UsernsMode"] = "host"
        levels = self.levels
        if "memory-cgroup" in levels:
            host |= {"Memory": self._most.memory_bytes, "MemorySwap": self._most.memory_bytes}
        if "pids-cgroup" in levels and self._most.processes is not None:
            host["PidsLimit"] = self._most.processes + HOLDERS
        if "cpus-cgroup" in levels and self._most.cpus is not None:
            host["NanoCpus"] = int(self._most.cpus * 10**9)
        if (most := self._most.disk_bytes) is not None:
            host["Ulimits"].append(_bound("fsize", most))
        return host

    def _mounts(self, workspace: Path, command: Command) -> list[dict[str, Any]]:
        """What is not there is left out."""
        place = self._place
        readable = [*place.readable, *map(Path, command.layers)]
        wanted = {self.workdir: workspace, HOME: place.home, **place.writable}
        fixed = {str(path.absolute()): path for path in readable}
        return [
            {"Type": "bind", "Source": str(path.absolute()), "Target": inside, "ReadOnly": is_fixed}
            for is_fixed, paths in ((False, wanted), (True, fixed))
            for inside, path in paths.items()
            if path.exists()
        ]

    @property
    def _user(self) -> str:
        """The user of this process, whose folders are mounted."""
        return "0:0" if self._has("rootless") else f"{os.geteuid()}:{os.getegid()}"

    @property
    def _sees_layers(self) -> bool:
        """Whether what is written onto the image can be looked at."""
        folder = self._info.get("DockerRootDir")
        return bool(folder) and os.access(str(folder), os.R_OK | os.X_OK)

    def _has(self, option: str) -> bool:
        """Whether the daemon names this among what it secures containers with."""
        options = self._info.get("SecurityOptions") or ()
        return any(str(listed).split(",")[0] == f"name={option}" for listed in options)


def _bounds() -> dict[str, int]:
    """Of each process; not over this process's own, because daemons ask for what no one may."""
    found = {"core": 0}
    for name, (which, wanted) in BOUNDS.items():
        _, most = resource.getrlimit(which)
        found[name] = wanted if most == resource.RLIM_INFINITY else min(wanted, most)
    return found


def _bound(name: str, most: int) -> dict[str, Any]:
    return {"Name": name, "Soft": most, "Hard": most}
