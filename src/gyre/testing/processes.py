"""Engine and proxy child processes for tests, and fake ones that note what is asked of them."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

from gyre.types.errors import ConfigError
from gyre.types.protocols import Node

HOST = "127.0.0.1"


def held_port() -> socket.socket:
    """Bound and not listening: a connection is refused, and no other process gets the port.

    A server that may reuse addresses listens on it nevertheless, and its successor after it.
    """
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind((HOST, 0))
    return held


def number_of(held: socket.socket) -> int:
    port: int = held.getsockname()[1]
    return port


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedRequest:
    """One ask as the server wrote it down."""

    id: str
    input_ids: list[int]
    max_tokens: int


class EngineProcess:
    """One running server; leaving the context ends it."""

    def __init__(
        self,
        wire: Literal["sglang", "vllm"],
        *,
        script: str,
        tokenizer: Path,
        log: Path,
        port: int = 0,
        version: int = 0,
        chunk_tokens: int = 4,
        chunk_delay_s: float = 0.0,
        incremental: bool = False,
    ) -> None:
        """Returns once the server listens; its port is held as long as the context lasts."""
        self._held = held_port() if port == 0 else None
        if self._held is not None:
            port = number_of(self._held)
        reader, writer = os.pipe()
        command = [sys.executable, "-m", "gyre.testing.engine_server", "--wire", wire]
        command += ["--script", script, "--tokenizer", str(tokenizer), "--log", str(log)]
        command += ["--port", str(port), "--version", str(version)]
        command += ["--chunk-tokens", str(chunk_tokens), "--chunk-delay-s", str(chunk_delay_s)]
        command += ["--ready-file", f"/dev/fd/{writer}"]
        command += ["--incremental"] if incremental else []
        self._child = subprocess.Popen(command, pass_fds=(writer,))
        os.close(writer)
        # The pipe ends when the server has written, or has died; nothing is polled.
        with os.fdopen(reader) as ready:
            said = ready.readline()
        if not said:
            self._let_go()
            raise RuntimeError(f"the engine server ended with {self._child.wait()}")
        self._log = log
        self.port: int = json.loads(said)["port"]
        self.url = f"http://127.0.0.1:{self.port}"
        self.address = f"{wire}={self.url}"

    def kill(self) -> None:
        """It is gone at once, as a machine that loses power."""
        self._child.kill()
        self._child.wait()

    def freeze(self) -> None:
        """It accepts connections and answers nothing."""
        self._child.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._child.send_signal(signal.SIGCONT)

    def asks(self) -> list[LoggedRequest]:
        """Everything it was asked so far."""
        with self._log.open() as lines:
            return [LoggedRequest(**json.loads(line)) for line in lines]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._child.poll() is None:
            self.kill()
        self._let_go()

    def _let_go(self) -> None:
        if self._held is not None:
            self._held.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedExecution:
    """What an agent program is given."""

    id: str
    key: str
    url: str
    """Base address, to which /v1/messages and the like are added."""


class StandaloneProxy:
    """One running `gyre proxy`; leaving the context ends it."""

    def __init__(
        self,
        folder: Path,
        *,
        model: Path,
        engines: Sequence[str],
        options: Sequence[str] = (),
    ) -> None:
        self.folder = folder
        self._model = model
        self._engines = tuple(engines)
        self._options = tuple(options)
        # Its own while it is away: what is started again listens where it did.
        self._held = held_port()
        self.port = number_of(self._held)
        try:
            self._child = self._spawn()
        except RuntimeError:
            self._held.close()
            raise

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        return self._child.pid

    def _spawn(self) -> "subprocess.Popen[str]":
        command = [sys.executable, "-m", "gyre", "proxy", "--model", str(self._model)]
        command += ["--run", str(self.folder), "--port", str(self.port)]
        for engine in self._engines:
            command += ["--engine", engine]
        child = subprocess.Popen([*command, *self._options], stdout=subprocess.PIPE, text=True)
        if child.stdout is None:
            raise RuntimeError("the proxy has no standard output")
        for line in child.stdout:
            if line == "ready\n":
                return child
        child.stdout.close()
        raise RuntimeError(f"the proxy ended with {child.wait()} before it was ready")

    def open(self, name: str) -> OpenedExecution:
        found = self.control("POST", "executions", {"id": name})
        return OpenedExecution(id=found["id"], key=found["key"], url=self.url + found["path"])

    def close(self, execution: str) -> None:
        self.control("POST", f"executions/{execution}/close")

    def control(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        """One request to the proxy's controls."""
        token = (self.folder / "admin.token").read_text()
        request = urllib.request.Request(
            f"{self.url}/gyre/{path}",
            method=method,
            data=json.dumps(body).encode() if body is not None else None,
            headers={"authorization": f"Bearer {token}"},
        )
        with urllib.request.urlopen(request, timeout=180) as answer:
            return json.load(answer)

    def metrics(self) -> dict[str, float]:
        """Every sample of /metrics by its name with labels."""
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=180) as answer:
            lines = answer.read().decode().splitlines()
        samples = (line.rpartition(" ") for line in lines if not line.startswith("#"))
        return {name: float(value) for name, _, value in samples}

    def kill(self) -> None:
        """SIGKILL: nothing is said, nothing is flushed."""
        self._child.kill()
        self._end()

    def restart(self) -> None:
        """A new process on the same port and run folder."""
        self._child = self._spawn()

    def stop(self) -> int:
        """SIGTERM; the exit status."""
        self._child.send_signal(signal.SIGTERM)
        return self._end()

    def _end(self) -> int:
        status = self._child.wait(timeout=180)
        if self._child.stdout is not None:
            self._child.stdout.close()
        return status

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._child.poll() is None:
            self._child.kill()
        self._end()
        self._held.close()


NO_PID = 2**22 + 1
"""No machine has a process of this number."""


class FakeProcess:
    """A ProcessHandle that ends by SIGKILL, by other signals of a test's choice, or by itself."""

    def __init__(self, name: str = "fake", *, ends_by: Collection[int] = (signal.SIGTERM,)) -> None:
        self.name = name
        self.pid = NO_PID
        self.signals: list[int] = []
        """All that it got while it ran, in order."""
        self._ends_by = ends_by
        self._status: int | None = None
        self._over = asyncio.Event()

    @property
    def is_over(self) -> bool:
        return self._over.is_set()

    def exit(self, status: int = 0) -> None:
        """It ends by itself."""
        self._status = status
        self._over.set()

    def signal(self, number: int) -> None:
        if self.is_over:
            return
        self.signals.append(number)
        if number == signal.SIGKILL or number in self._ends_by:
            self.exit(-number)

    async def wait(self) -> int:
        await self._over.wait()
        assert self._status is not None
        return self._status

    async def end(self, within_s: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await self.wait()
        await self.kill()

    async def stop(self, within_s: float = 0.1) -> None:
        self.signal(signal.SIGTERM)
        await self.end(within_s)

    async def kill(self) -> None:
        self.signal(signal.SIGKILL)
        await self.wait()


@dataclass(frozen=True, slots=True, kw_only=True)
class ForkRequest:
    """What a process was to be forked with."""

    name: str
    arguments: tuple[str, ...]
    log: Path
    secret: str
    outlives_parent: bool


class FakeForker:
    """A ProcessForker whose processes are fakes; those of earlier ones are a node's."""

    def __init__(self, node: Node, *, ends_by: Collection[int] = (signal.SIGTERM,)) -> None:
        self.requests: list[ForkRequest] = []
        self.processes: list[FakeProcess] = []
        """One for each request."""
        self.is_closed = False
        """Nothing is forked any more."""
        self.gate = asyncio.Event()
        """Nothing is forked while it is clear."""
        self.gate.set()
        self.asked = asyncio.Event()
        self._node = node
        self._ends_by = ends_by

    async def fork(
        self,
        name: str,
        arguments: Sequence[str],
        *,
        log: Path,
        secret: str = "",
        outlives_parent: bool = False,
    ) -> FakeProcess:
        self.asked.set()
        await self.gate.wait()
        if self.is_closed:
            raise ConfigError("the fork server has ended")
        self.requests.append(
            ForkRequest(
                name=name,
                arguments=tuple(arguments),
                log=log,
                secret=secret,
                outlives_parent=outlives_parent,
            )
        )
        self.processes.append(FakeProcess(name, ends_by=self._ends_by))
        return self.processes[-1]

    def signal_log_holder(self, log: str, number: int) -> None:
        self._node.signal_log_holder(log, number)
