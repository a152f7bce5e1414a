"""A real proxy as a child process: started, killed, started again on the same port and run."""

import json
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from gyre.testing.held_port import held_port, number_of


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
            message = "the proxy has no standard output"
            raise RuntimeError(message)
        for line in child.stdout:
            if line == "ready\n":
                return child
        child.stdout.close()
        message = f"the proxy ended with {child.wait()} before it was ready"
        raise RuntimeError(message)

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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._child.poll() is None:
            self._child.kill()
        self._end()
        self._held.close()
