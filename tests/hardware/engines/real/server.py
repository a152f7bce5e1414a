"""One real engine server on this machine's CPU: started, killed, started again, asked its load."""

import os
import signal
import socket
import subprocess
import threading
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

from real import installed

START_S = 300
"""A server that is not up by then is broken; a cold start takes a minute on two cores."""
WINDOW = 2048

Kind = Literal["vllm", "sglang"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How an engine is started without an accelerator, and what it says when it is up."""

    module: str
    arguments: tuple[str, ...]
    environment: dict[str, str]
    ready: str
    running: tuple[str, ...]
    """Metrics that together count the requests it has."""


RECIPES: dict[Kind, Recipe] = {
    "vllm": Recipe(
        module="vllm.entrypoints.openai.api_server",
        arguments=(
            *("--enforce-eager", "--block-size", "32", "--enable-scale-out"),
            *("--max-model-len", str(WINDOW), "--max-num-seqs", "8"),
        ),
        environment={
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_SERVER_DEV_MODE": "1",
            "VLLM_NO_USAGE_STATS": "1",
        },
        ready="Application startup complete.",
        running=("vllm:num_requests_running", "vllm:num_requests_waiting"),
    ),
    "sglang": Recipe(
        module="sglang.launch_server",
        arguments=(
            *("--device", "cpu", "--attention-backend", "torch_native"),
            *("--sampling-backend", "pytorch", "--disable-overlap-schedule"),
            *("--context-length", str(WINDOW), "--max-total-tokens", "8192"),
            # Its gauges are written when it logs, so it logs every step.
            *("--max-running-requests", "8", "--enable-metrics", "--decode-log-interval", "1"),
        ),
        environment={"SGLANG_USE_CPU_ENGINE": "1"},
        ready="The server is fired up and ready to roll!",
        running=("sglang:num_running_reqs", "sglang:num_queue_reqs"),
    ),
}
MODEL_OPTION = {"vllm": "--model", "sglang": "--model-path"}


class RealEngine:
    """One server and its children; leaving the context ends them all."""

    def __init__(self, kind: Kind, log: Path, *options: str) -> None:
        """Returns once the server takes requests."""
        self.kind = kind
        self._recipe = RECIPES[kind]
        self._log = log
        self._options = options
        with socket.socket() as held:
            held.bind(("127.0.0.1", 0))
            self.port = held.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.address = f"{kind}={self.url}"
        self._start()

    def _start(self) -> None:
        command = [str(installed.python(self.kind)), "-m", self._recipe.module]
        command += [MODEL_OPTION[self.kind], str(installed.model())]
        command += ["--host", "127.0.0.1", "--port", str(self.port)]
        self._child = subprocess.Popen(
            [*command, *self._recipe.arguments, *self._options],
            env=os.environ | {"HF_HUB_OFFLINE": "1"} | self._recipe.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            # A group of its own, so that a kill takes the workers as well.
            start_new_session=True,
        )
        up = threading.Event()
        self._reader = threading.Thread(target=self._read, args=(self._child, up))
        self._reader.start()
        if not up.wait(START_S) or self._child.poll() is not None:
            self.kill()
            tail = "".join(self._log.read_text().splitlines(keepends=True)[-30:])
            raise RuntimeError(f"{self.kind} did not start:\n{tail}")
        # It says so a moment before it listens.
        while not self._listens():
            assert self._child.poll() is None, f"{self.kind} ended as soon as it was up"

    def _listens(self) -> bool:
        with socket.socket() as made:
            return made.connect_ex(("127.0.0.1", self.port)) == 0

    def _read(self, child: "subprocess.Popen[str]", up: threading.Event) -> None:
        assert child.stdout is not None
        with self._log.open("a") as log, child.stdout:
            for line in child.stdout:
                log.write(line)
                log.flush()
                if self._recipe.ready in line:
                    up.set()
        # The pipe ends with the last process that holds it, and then nothing more comes up.
        child.wait()
        up.set()

    def running(self) -> int:
        """Requests the engine has, as it says itself."""
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=30) as answer:
            lines = answer.read().decode().splitlines()
        names = tuple(f"{name}{{" for name in self._recipe.running)
        return int(sum(float(line.split()[-1]) for line in lines if line.startswith(names)))

    def kill(self) -> None:
        """SIGKILL for the server and its workers, as a machine that loses power."""
        os.killpg(self._child.pid, signal.SIGKILL)
        self._child.wait()
        self._reader.join()

    def restart(self) -> None:
        """A new server at the same address."""
        self._start()

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
