"""Programs in containers of a daemon on this machine, which reach the proxy and nothing else.

Rule 1: a container dies with the process that made it, because its first process ends when no
process holds its input; Podman goes on holding it, and what is left is found by its label.
Rule 2: what programs write outside workspace and home goes with the container.
"""

import asyncio
import json
import os
import select
import signal
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from gyre.sandboxes.docker import exec as docker_program
from gyre.sandboxes.docker import image
from gyre.sandboxes.docker.api import Daemon, DaemonRefusal, UpgradedConnection
from gyre.sandboxes.docker.container import LABEL, Container, ContainerKind
from gyre.sandboxes.docker.exec import ContainerProgram
from gyre.sandboxes.local.cgroups import num_killed_in
from gyre.sandboxes.local.launch import KILL_S
from gyre.sandboxes.local.sandbox import NO_LIMITS, PORT
from gyre.sandboxes.process import write_home
from gyre.sandboxes.process_tree import Watchdog
from gyre.sandboxes.proxy_relay import Relay, Upstream, listen_inside, through
from gyre.types.errors import InternalError, SandboxError, wrap_errors
from gyre.types.tasks import Command, Level, Limits

REMOVE_S = 60.0
PAUSE_S = 0.02


@dataclass(slots=True)
class RunningContainer:
    """A container, and what belongs to it while it runs."""

    identity: str
    held: UpgradedConnection | None = None
    relay: Relay | None = None
    program: ContainerProgram | None = None
    watching: "asyncio.Task[None] | None" = None
    init: int = 0
    first: int | None = None
    """Descriptor of that process, where it is one of this machine's."""
    over: str | None = None
    """Which limit it was removed for."""

    def kill_first(self) -> bool:
        """Whether all that has its namespace is dead; the right to that may be missing."""
        if self.first is None:
            return False
        try:
            signal.pidfd_send_signal(self.first, signal.SIGKILL)
        except ProcessLookupError:
            return True
        except PermissionError:
            return False
        return bool(select.select([self.first], [], [], KILL_S)[0])

    def close(self) -> None:
        if self.held is not None:
            self.held.close()
        if self.program is not None:
            self.program.finish()
        if self.first is not None:
            os.close(self.first)


class DockerSandbox:
    """The sandbox of one execution: each of its programs runs in a new container."""

    def __init__(
        self,
        mark: str,
        container: Container,
        *,
        most: Limits = NO_LIMITS,
        proxy: Upstream | None = None,
    ) -> None:
        """`proxy`: programs reach it; None: they reach no address."""
        self._mark = mark
        self._container = container
        self._most = most
        self._proxy = proxy
        self._daemon = Daemon(container.socket)
        self._kind: ContainerKind | None = None
        self._workspace: Path | None = None
        self._starting: asyncio.Task[None] | None = None
        self._running: RunningContainer | None = None
        self._is_filled = not container.fills
        self._is_swept = False

    @property
    def levels(self) -> tuple[Level, ...]:
        """What is in force, once it is prepared."""
        return () if self._kind is None else self._kind.levels

    @property
    def init(self) -> int:
        """First process of what runs, as this process sees it."""
        if self._running is None:
            raise InternalError("nothing was started")
        return self._running.init

    def address(self, url: str) -> str:
        return through(url, PORT)

    async def prepare(self, workspace: str) -> None:
        info = await self._daemon.ask("GET", "/info")
        if (system := info.get("OSType", "linux")) != "linux":
            message = f"{self._container.socket}: expected a daemon for Linux, found {system}"
            raise SandboxError(message, retryable=False)
        with wrap_errors(SandboxError, "folders of a sandbox"):
            for folder in (self._container.home, self._container.folder):
                folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        kind = ContainerKind(self._container, await self._found(), info, self._most)
        if not self._is_filled:
            await self._fill(kind, Path(workspace))
            self._is_filled = True
        self._kind = kind
        self._workspace = Path(workspace)

    async def start(self, command: Command, *, output: str, most_bytes: int) -> None:
        if self._workspace is None or self._running is not None or self._starting is not None:
            raise InternalError("a sandbox runs one program at a time, after it was prepared")
        write_home(self._container.home, command.home)
        await self._sweep()
        # In a task of its own, so that the container is known before the caller is cancelled.
        self._starting = asyncio.create_task(self._start(command, Path(output), most_bytes))
        try:
            await asyncio.shield(self._starting)
        except (SandboxError, OSError) as error:
            await self.kill()
            is_retryable = error.retryable if isinstance(error, SandboxError) else True
            message = f"starting {[text[:100] for text in command.argv[:1]]}: {error}"
            raise SandboxError(message, retryable=is_retryable) from error

    async def wait(self) -> int:
        running = self._running
        if running is None or running.program is None:
            raise InternalError("nothing was started")
        try:
            status = await running.program.wait()
        except SandboxError as error:
            if running.over is None:
                raise
            raise SandboxError(f"it went over a limit: {running.over}") from error
        if running.over is not None:
            raise SandboxError(f"it went over a limit: {running.over}")
        if status < 0 and _num_killed(running.init):
            message = f"it went over a limit: {self._most.memory_bytes} bytes of memory are allowed"
            raise SandboxError(message)
        return status

    async def kill(self) -> None:
        if self._starting is not None:
            await asyncio.gather(self._starting, return_exceptions=True)
            self._starting = None
        if self._running is not None:
            await self._end(self._running)
            self._running = None
            return
        # A daemon that does not answer is named by the request that needs it next.
        with suppress(SandboxError):
            await self._sweep()

    async def freeze(self) -> None:
        await self.kill()
        await self._sweep()

    async def _found(self) -> image.Image:
        """The image, built first if it is not there and can be."""
        place = self._container
        name = place.image
        if name is None and place.build is not None:
            name = await asyncio.to_thread(image.build, self._daemon, place.build, place.build_s)
        if name is None:
            message = "a docker sandbox: expected an image, of the task or in the run file"
            raise SandboxError(message, retryable=False)
        return await image.look_up(self._daemon, name)

    async def _fill(self, kind: ContainerKind, workspace: Path) -> None:
        body = {"Image": kind.image.name, "Entrypoint": ["sh"], "Labels": {LABEL: self._mark}}
        made = await self._daemon.ask("POST", "/containers/create", body)
        try:
            await asyncio.to_thread(
                image.put_below,
                self._daemon,
                made["Id"],
                kind.workdir,
                workspace,
                self._container.folder / "image",
            )
        finally:
            await self._remove(made["Id"])

    async def _start(self, command: Command, output: Path, most_bytes: int) -> None:
        """Bounded and connected before the program begins."""
        kind, workspace = self._kind, self._workspace
        assert kind is not None
        assert workspace is not None
        body = kind.body(self._mark, workspace, command)
        made = await self._daemon.ask("POST", "/containers/create", body)
        running = self._running = RunningContainer(made["Id"])
        at = f"/containers/{running.identity}"
        running.held = await asyncio.to_thread(self._daemon.open, f"{at}/attach", stream=1, stdin=1)
        await self._daemon.ask("POST", f"{at}/start")
        found = await self._daemon.ask("GET", f"{at}/json")
        kind.refuse_other_runtime(found)
        running.init = int(found["State"]["Pid"])
        if not running.init:
            message = f"a container of {kind.image.name} ended at once; expected sh and cat in it"
            raise SandboxError(message, retryable=False)
        with suppress(OSError):
            running.first = os.pidfd_open(running.init)
        if self._proxy is not None:
            listening = await asyncio.to_thread(listen_inside, running.init, PORT)
            running.relay = Relay(listening, self._proxy)
            await running.relay.open()
        running.program = await docker_program.made(
            self._daemon,
            running.identity,
            command,
            kind.environment(self._mark, command),
            kind.workdir,
            output=output,
            most_bytes=most_bytes,
        )
        await running.program.begin()
        folders = kind.written(workspace, found)
        running.watching = asyncio.create_task(self._watch(running, folders))

    async def _watch(self, running: RunningContainer, folders: list[Path]) -> None:
        """It is removed when it goes over what no control group bounds."""
        unbounded = replace(self._most, memory_bytes=None, processes=None)
        running.over = await Watchdog(running.init, unbounded, folders).watch()
        await self._remove(running.identity)

    async def _end(self, running: RunningContainer) -> None:
        """Nothing of it runs, its output is complete, and the daemon has forgotten it."""
        if running.watching is not None:
            running.watching.cancel()
            await asyncio.gather(running.watching, return_exceptions=True)
        # Before the daemon is asked, because containers outlive one that dies.
        is_dead = await asyncio.to_thread(running.kill_first)
        try:
            if not is_dead:
                with suppress(DaemonRefusal):
                    await self._daemon.ask("POST", f"/containers/{running.identity}/kill")
            # Removed afterwards, so that what was printed last still comes.
            if running.program is not None:
                await asyncio.to_thread(running.program.finish)
            await self._remove(running.identity)
        except SandboxError:
            if not is_dead:
                raise
        if running.relay is not None:
            await running.relay.close()
        running.close()

    async def _remove(self, identity: str) -> None:
        """The container is gone, and with its first process all others."""
        try:
            async with asyncio.timeout(REMOVE_S):
                while True:
                    try:
                        await self._daemon.ask("DELETE", f"/containers/{identity}", force=1, v=1)
                        return
                    except DaemonRefusal as error:
                        if error.status == 404:
                            return
                        # Another process removes it just now.
                        if error.status != 409:
                            raise
                    await asyncio.sleep(PAUSE_S)
        except TimeoutError as error:
            raise SandboxError(f"container {identity}: not removed within {REMOVE_S} s") from error

    async def _sweep(self) -> None:
        """What a supervisor before this one left is gone."""
        if self._is_swept:
            return
        filters = json.dumps({"label": [f"{LABEL}={self._mark}"]})
        for container in await self._daemon.ask("GET", "/containers/json", all=1, filters=filters):
            await self._remove(container["Id"])
        self._is_swept = True


def _num_killed(pid: int) -> int:
    """Processes of a container that the kernel has killed because memory was over."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            inside = path.lstrip("/")
            folders = [Path("/sys/fs/cgroup", controllers, inside), Path("/sys/fs/cgroup", inside)]
            for folder in folders:
                if (found := num_killed_in(folder)) is not None:
                    return found
    return 0
