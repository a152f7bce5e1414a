"""The controller's side of fork servers."""

import asyncio
import itertools
import json
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from gyre.aio import done_within
from gyre.cluster.process import STOP_S, ForkedProcess, LocalNode
from gyre.types.errors import ConfigError
from gyre.types.protocols import Cluster, Node, NodeProcess, ProcessHandle


class ProcessForker(Protocol):
    """Forks processes, on this machine or another."""

    async def fork(
        self,
        name: str,
        arguments: Sequence[str],
        *,
        log: Path,
        secret: str = "",
        outlives_parent: bool = False,
    ) -> ProcessHandle:
        """A new process; `secret` reaches it by a pipe alone."""
        ...

    def signal_log_holder(self, log: str, number: int) -> None:
        """Signals a process of an earlier fork server, which is known by its log."""
        ...


@dataclass(frozen=True, slots=True)
class _Request:
    """A fork that was asked for and is not answered yet."""

    name: str
    log: Path
    process: asyncio.Future[ForkedProcess]


class ForkClient:
    """The client of one fork server, which imports a module once and forks processes of it.

    It may be killed: the next fork opens another, and those forked before live on, unless they
    die with their parent.
    """

    def __init__(
        self, module: str, process: NodeProcess, log: Path, node: Node, *, dies_with_parent: bool
    ) -> None:
        """Made by `open`."""
        self._module = module
        self._log = log
        self._node = node
        self._dies_with_parent = dies_with_parent
        self._opening = asyncio.Lock()
        self._requests = itertools.count()
        self._process = process
        self._processes = [process]
        """All there were: children of one that was killed may still write to its output."""
        self._asked: dict[int, _Request] = {}
        self._listening = asyncio.create_task(self._listen(process, self._asked))
        self._tasks = [self._listening]

    @classmethod
    async def open(
        cls, module: str, log: Path, *, at: Node | None = None, dies_with_parent: bool = False
    ) -> "ForkClient":
        """Starts a fork server, here or at a node; see `fork` for which children end with it."""
        node = LocalNode() if at is None else at
        return cls(
            module,
            await _fork_server(module, log, node, dies_with_parent),
            log,
            node,
            dies_with_parent=dies_with_parent,
        )

    @property
    def pid(self) -> int:
        """Of the fork server that there is now."""
        return self._process.pid

    @property
    def is_over(self) -> bool:
        """Its process has ended."""
        return self._process.is_over or self._listening.done()

    async def fork(
        self,
        name: str,
        arguments: Sequence[str],
        *,
        log: Path,
        secret: str = "",
        outlives_parent: bool = False,
    ) -> ForkedProcess:
        """A new process; `secret` reaches it by a pipe alone."""
        log.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        async with self._opening:
            if self.is_over:
                await self._reopen()
        request = next(self._requests)
        process: asyncio.Future[ForkedProcess] = asyncio.get_running_loop().create_future()
        self._asked[request] = _Request(name, log, process)
        asked = {
            "request": request,
            "arguments": list(arguments),
            "secret": secret,
            "log": str(log),
            "outlives_parent": outlives_parent,
        }
        try:
            await self._process.tell(json.dumps(asked).encode() + b"\n")
        except (BrokenPipeError, ConnectionResetError) as error:
            if not process.cancel():
                # Asked for here, else the loop warns that the failure was never retrieved.
                process.exception()
            raise self._has_ended() from error
        return await process

    def signal_log_holder(self, log: str, number: int) -> None:
        self._node.signal_log_holder(log, number)

    async def close(self) -> None:
        """Ends the fork server; processes that do not outlive it get SIGTERM."""
        self._process.hang_up()
        if not await done_within(STOP_S, self._process.wait()):
            self._node.signal(self._process.pid, signal.SIGKILL)
            await self._process.wait()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for process in self._processes:
            await process.close()

    async def _reopen(self) -> None:
        self._process = await _fork_server(
            self._module, self._log, self._node, self._dies_with_parent
        )
        self._processes.append(self._process)
        self._asked = {}
        self._listening = asyncio.create_task(self._listen(self._process, self._asked))
        self._tasks.append(self._listening)

    async def _listen(self, process: NodeProcess, asked: dict[int, _Request]) -> None:
        """Takes answers until the process ends; then the ends of its children are looked for."""
        children: dict[int, ForkedProcess] = {}
        early: dict[int, Mapping[str, Any]] = {}
        """A child's own line may come before its parent's line about it."""
        async for line in process.lines():
            answer = json.loads(line)
            pid = answer["pid"]
            if "request" in answer:
                request = asked.pop(answer["request"])
                children[pid] = ForkedProcess(request.name, pid, request.log, self._node)
                if not request.process.done():  # The task that asked may be cancelled by now.
                    request.process.set_result(children[pid])
                answer = early.pop(pid, {})
            elif pid not in children:
                early[pid] = answer
                continue
            if "ready" in answer:
                children[pid].report_ready(answer["ready"])
            if "ended" in answer:
                children.pop(pid).report_end(answer["ended"])
        for request in asked.values():
            if not request.process.done():
                request.process.set_exception(self._has_ended())
        self._tasks += (asyncio.create_task(child.watch()) for child in children.values())

    def _has_ended(self) -> ConfigError:
        return ConfigError(f"the fork server of {self._module} has ended")


async def _fork_server(module: str, log: Path, node: Node, dies_with_parent: bool) -> NodeProcess:
    how = ("--dies-with-parent",) if dies_with_parent else ()
    return await node.spawn(("-m", "gyre.cluster.fork_server", module, *how), log=str(log))


class ForkClients:
    """The fork clients of a cluster's nodes, opened as needed; those of lost nodes are dropped."""

    def __init__(self, module: str, cluster: Cluster, log: Path) -> None:
        self._module = module
        self._cluster = cluster
        self._log = log
        self._fork_clients: dict[Node, ForkClient] = {}
        self._opening = asyncio.Lock()

    @property
    def pids(self) -> list[int]:
        """Of those on this machine."""
        here = self._cluster.here.host
        return [client.pid for node, client in self._fork_clients.items() if node.host == here]

    async def at(self, node: Node) -> ForkClient:
        async with self._opening:
            self._fork_clients = {
                node: client for node, client in self._fork_clients.items() if not node.is_lost
            }
            if node not in self._fork_clients:
                # What does not outlive its controller must not outlive its node agent either.
                self._fork_clients[node] = await ForkClient.open(
                    self._module, self._log, at=node, dies_with_parent=not self._cluster.is_shared
                )
            return self._fork_clients[node]

    async def fork(
        self,
        name: str,
        arguments: Sequence[str],
        *,
        log: Path,
        secret: str = "",
        outlives_parent: bool = False,
    ) -> ForkedProcess:
        """A new process on a node that the cluster picks for executions."""
        fork_client = await self.at(await self._cluster.agents())
        return await fork_client.fork(
            name, arguments, log=log, secret=secret, outlives_parent=outlives_parent
        )

    def signal_log_holder(self, log: str, number: int) -> None:
        self._cluster.signal_log_holder(log, number)

    async def close(self) -> None:
        await asyncio.gather(*(client.close() for client in self._fork_clients.values()))
