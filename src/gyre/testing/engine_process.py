"""A scripted engine server as a child process: started, killed, frozen, read back."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

from gyre.testing.held_port import held_port, number_of


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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._child.poll() is None:
            self.kill()
        self._let_go()

    def _let_go(self) -> None:
        if self._held is not None:
            self._held.close()
