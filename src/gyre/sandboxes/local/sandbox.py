"""Programs in namespaces of their own, which reach the proxy and nothing else of this machine.

Rule 1: whatever a program started dies with the first process of its namespaces, and that dies
with this process.
"""

import asyncio
import os
import resource
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from gyre.sandboxes.local import cgroups, launch, seccomp
from gyre.sandboxes.local.cgroups import ControlGroup
from gyre.sandboxes.local.launch import Bubblewrap, LaunchedProgram
from gyre.sandboxes.local.mounts import (
    SYSTEM,
    WORKDIR,
    Layers,
    SandboxMounts,
    below_of,
    clear_ways,
    devices,
    read_system,
    refuse_ways_out,
)
from gyre.sandboxes.process import OutputCapture, write_home
from gyre.sandboxes.process_tree import MARK, SandboxProcesses, Watchdog
from gyre.sandboxes.proxy_relay import Relay, Upstream, listen_inside, through
from gyre.types.errors import InternalError, SandboxError, wrap_errors
from gyre.types.tasks import Command, Level, Limits

INHERITED = ("LANG", "LC_ALL", "TZ")
"""All that programs see of the environment of whoever started Gyre, besides parts of its PATH."""
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
PORT = 4080
"""Where the proxy is reached, on the loopback of the sandbox."""
OOM_SCORE = "500"
"""A machine without memory ends programs of sandboxes before anything of the run."""
MOST_SAID = 300
NO_LIMITS = Limits()


@dataclass(slots=True)
class RunningProgram:
    """A program, and what belongs to it while it runs."""

    started: LaunchedProgram
    kept: OutputCapture
    output: Path
    launching: "asyncio.Task[bool] | None" = None
    relay: Relay | None = None
    watching: "asyncio.Task[None] | None" = None
    over: str | None = None
    """Which limit it was killed for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxLayout:
    """Where a sandbox is put together, and of what."""

    folder: Path
    """For temporary files, and for what is written onto a root."""
    home: Path
    roots: tuple[Path, ...] = ()
    """Folders that are its root, from the bottom up; none: the machine's system folders."""
    workdir: str = WORKDIR
    readable: tuple[Path, ...] = ()
    """Of this machine, under the same paths."""
    writable: Mapping[str, Path] | None = None
    """Of this machine, by their paths inside."""
    stacks: bool = False
    """The workspace stays as it is found, and what programs write is forgotten."""
    left: Path | None = None
    """Of its roots, one that programs before have written: nothing that they left in the way of
    what is shown keeps this sandbox from starting. Only of one that stacks."""


def warm() -> None:
    """What all sandboxes of this machine share is read, for processes that are forked from now."""
    with suppress(SandboxError):
        # Sandboxes of other kinds do without it, and one that needs it says that it is missing.
        launch.find_bubblewrap()
    read_system()
    seccomp.program()


class LocalSandbox:
    """Programs of one execution, one after the other, each in namespaces of its own."""

    def __init__(
        self,
        mark: str,
        place: SandboxLayout,
        *,
        most: Limits = NO_LIMITS,
        proxy: Upstream | None = None,
        groups: Mapping[str, cgroups.CgroupParent] | None = None,
        bubblewrap: Bubblewrap | None = None,
    ) -> None:
        """`proxy`: programs reach it; None: they reach nobody.

        `groups`: where control groups are made, by controller; None: wherever they can be.
        `bubblewrap`: what puts it together; None: the one that is found when a program starts.
        """
        self._mark = mark
        self._place = place
        self._most = most
        self._proxy = proxy
        self._groups = groups
        self._bubblewrap = bubblewrap
        self._filter = seccomp.program()
        self._workspace: Path | None = None
        self._running: RunningProgram | None = None
        self._group: ControlGroup | None = None
        self._is_swept = False

    @property
    def levels(self) -> tuple[Level, ...]:
        """What is in force, once it is prepared."""
        found: set[Level] = {"files", "processes", "network", "privileges"}
        if self._filter is not None:
            found.add("seccomp")
        if self._group is not None:
            found |= self._group.levels
        bounded: dict[Level, float | None] = {
            "memory": self._most.memory_bytes,
            "pids": self._most.processes,
            "disk": self._most.disk_bytes,
        }
        return tuple(sorted(found | {level for level, most in bounded.items() if most is not None}))

    @property
    def init(self) -> int:
        """First process of what runs, as this process sees it."""
        if self._running is None:
            raise InternalError("nothing was started")
        return self._running.started.init

    def address(self, url: str) -> str:
        return through(url, PORT)

    async def prepare(self, workspace: str) -> None:
        with wrap_errors(SandboxError, "folders of a sandbox"):
            for folder in self._folders():
                folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if self._group is None:
            groups = cgroups.here() if self._groups is None else self._groups
            self._group = ControlGroup(f"gyre-{self._mark[:16]}", self._most, groups)
        self._workspace = Path(workspace)

    async def start(self, command: Command, *, output: str, most_bytes: int) -> None:
        if self._workspace is None or self._running is not None:
            raise InternalError("a sandbox runs one program at a time, after it was prepared")
        await self.prepare(str(self._workspace))
        write_home(self._place.home, command.home)
        self._running = self._spawn(command, self._workspace, Path(output), most_bytes)
        self._running.launching = asyncio.create_task(self._launch(self._running))
        try:
            has_begun = await asyncio.shield(self._running.launching)
        except (SandboxError, OSError) as error:
            said = await self._kill_and_read()
            raise SandboxError(f"starting {command.argv[:1]}: {error} {said}".rstrip()) from error
        if not has_begun:
            message = f"starting {command.argv[:1]}: {await self._kill_and_read()}"
            raise SandboxError(message, retryable=False)
        self._running.watching = asyncio.create_task(self._watch(self._running))

    async def wait(self) -> int:
        running = self._running
        if running is None:
            raise InternalError("nothing was started")
        status = await asyncio.to_thread(running.started.wait)
        if running.over is not None:
            raise SandboxError(f"it went over a limit: {running.over}")
        if status < 0 and self._group is not None and self._group.num_killed():
            message = f"it went over a limit: {self._most.memory_bytes} bytes of memory are allowed"
            raise SandboxError(message)
        return status

    async def kill(self) -> None:
        running = self._running
        if running is not None:
            await self._end(running)
            self._running = None
        elif not self._is_swept and self._place.folder.exists():
            # What a supervisor before this one started, which should be dead already; looking for
            # it takes longer than making a sandbox, and without its folder there was none.
            members = SandboxProcesses(self._mark, owns_descendants=False)
            await asyncio.to_thread(members.kill, reaped_elsewhere=None)
        self._is_swept = True
        if self._group is not None:
            await asyncio.to_thread(self._group.remove)
            self._group = None

    async def freeze(self) -> None:
        await self.kill()

    def _spawn(
        self, command: Command, workspace: Path, output: Path, most_bytes: int
    ) -> RunningProgram:
        if not command.argv:
            message = "starting a program: expected its name, found no argument"
            raise SandboxError(message, retryable=False)
        bubblewrap = self._bubblewrap or launch.find_bubblewrap()
        kept = OutputCapture(output, most_bytes)
        try:
            view = self._view(command, workspace)
            started = LaunchedProgram(
                bubblewrap,
                view.arguments(),
                command.argv,
                files=view.files(),
                seccomp=self._filter,
                env=self._environment(command, view),
                output=kept.pipe,
            )
        except (OSError, ValueError) as error:
            # ValueError: a NUL in an argument.
            raise SandboxError(f"starting {command.argv[:1]}: {error}", retryable=False) from error
        finally:
            kept.close_pipe()
        return RunningProgram(started, kept, output)

    async def _launch(self, running: RunningProgram) -> bool:
        """Bounded and connected before it begins; False if the program cannot be started."""
        started = running.started
        await asyncio.to_thread(started.stand)
        if self._group is not None:
            self._group.join(started.init)
        started.bound(resource.RLIMIT_CORE, 0)
        if self._most.processes is not None and cgroups.counts_apart():
            started.bound(resource.RLIMIT_NPROC, self._most.processes)
        if self._most.disk_bytes is not None:
            started.bound(resource.RLIMIT_FSIZE, self._most.disk_bytes)
        with suppress(OSError):
            Path(f"/proc/{started.init}/oom_score_adj").write_text(OOM_SCORE)
        if self._proxy is not None:
            listening = await asyncio.to_thread(listen_inside, started.init, PORT)
            running.relay = Relay(listening, self._proxy)
            await running.relay.open()
        return await asyncio.to_thread(started.begin)

    async def _watch(self, running: RunningProgram) -> None:
        """It is killed when it goes over what no control group bounds."""
        assert self._group is not None
        levels = self._group.levels
        unbounded = replace(
            self._most,
            memory_bytes=None if "memory-cgroup" in levels else self._most.memory_bytes,
            processes=None if "pids-cgroup" in levels else self._most.processes,
        )
        watchdog = Watchdog(running.started.init, unbounded, self._written())
        running.over = await watchdog.watch()
        await asyncio.to_thread(running.started.kill)

    async def _end(self, running: RunningProgram) -> None:
        """Nothing of it runs, and its output is complete."""
        if running.launching is not None:
            # First, because what has no first process yet cannot be killed whole.
            await asyncio.wait({running.launching})
        if running.watching is not None:
            running.watching.cancel()
            await asyncio.gather(running.watching, return_exceptions=True)
        await asyncio.to_thread(running.started.kill)
        if running.relay is not None:
            await running.relay.close()
        await asyncio.to_thread(running.kept.finish)
        running.started.close()

    async def _kill_and_read(self) -> str:
        """What bubblewrap or the program said last."""
        running = self._running
        assert running is not None
        await self.kill()
        with suppress(OSError):
            return running.output.read_text(errors="replace").strip()[-MOST_SAID:]
        return ""

    def _view(self, command: Command, workspace: Path) -> SandboxMounts:
        place = self._place
        below = below_of(place.roots, place.workdir)
        stacked = None
        if place.stacks:
            stacked = self._layers("workspace", (*below, workspace))
        elif below:
            stacked = replace(self._layers("workspace", below), upper=workspace)
        view = SandboxMounts(
            workspace=workspace,
            home=place.home,
            tmp=self._tmp,
            workdir=place.workdir,
            stacked=stacked,
            root=self._layers("root", place.roots) if place.roots else None,
            readable=(*place.readable, *map(Path, command.layers)),
            writable=place.writable or {},
            devices=devices(),
        )
        if view.root is not None and place.left is not None:
            clear_ways(view.root.upper, place.left, (put.at for put in view.puts()))
        refuse_ways_out(view.puts())
        return view

    def _environment(self, command: Command, view: SandboxMounts) -> dict[str, str]:
        inherited = {name: os.environ[name] for name in INHERITED if name in os.environ}
        seen = [Path("/") / name for name in SYSTEM] if view.root is None else []
        seen += view.readable
        found = [
            folder
            for folder in os.environ.get("PATH", "").split(":")
            if any(Path(folder).is_relative_to(one) for one in seen)
        ]
        given = {"PATH": ":".join(dict.fromkeys([*found, *PATH.split(":")])), "PWD": view.workdir}
        own = {"HOME": view.home_inside, "TMPDIR": "/tmp", MARK: self._mark}
        return inherited | given | command.variables | own

    def _layers(self, name: str, lower: Sequence[Path]) -> Layers:
        return Layers(lower=tuple(lower), upper=self._upper(name), work=self._work(name))

    def _upper(self, name: str) -> Path:
        return self._place.folder / (f"{name}-written" if self._place.stacks else "root")

    def _work(self, name: str) -> Path:
        return self._place.folder / f"{name}-work"

    @property
    def _tmp(self) -> Path:
        return self._place.folder / "tmp"

    def _folders(self) -> list[Path]:
        """That must be there before a program starts."""
        found = [self._place.folder, self._place.home, self._tmp]
        for name in ("root", "workspace"):
            if self._place.stacks or self._place.roots:
                found += [self._upper(name), self._work(name)]
        return found

    def _written(self) -> list[Path]:
        """Folders that programs write to."""
        assert self._workspace is not None
        own = [self._place.home, self._tmp, *(self._place.writable or {}).values()]
        if self._place.stacks or self._place.roots:
            own += [self._upper("root"), self._upper("workspace")]
        return list(dict.fromkeys([*own] if self._place.stacks else [self._workspace, *own]))
