"""Command lines, environment and child process of an external server."""

import asyncio
import json
import os
import shutil
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import PIPE
from typing import Literal

from gyre.aio import PipedProcess, start_process
from gyre.config.sections import EngineConfig, ServerConfig
from gyre.types.errors import ConfigError, EngineError

POLL_S = 0.5
"""Pause between two looks at a server that starts."""
END_S = 5.0
"""How long it may take to end after SIGTERM."""
GUARD = Path(__file__).with_name("guard.py")


class ServerChild:
    """One server with all its workers, in a session of their own; they end with this process."""

    def __init__(self, name: str, process: PipedProcess, folder: Path) -> None:
        """Made by `start`."""
        self._name = name
        self._process = process
        self._folder = folder

    @classmethod
    async def start(
        cls, name: str, command: Sequence[str], variables: Mapping[str, str], *, folder: Path
    ) -> "ServerChild":
        """Its words go where this process writes its own log; its folder goes with it."""
        try:
            process = await start_process(
                sys.executable,
                *("-I", "-S", str(GUARD), str(folder)),
                *command,
                stdin=PIPE,
                stdout=sys.stderr.fileno(),
                env=os.environ | variables,
            )
        except OSError as error:
            raise ConfigError(f"engine {name}: {command[0]}: {error}") from error
        return cls(name, process, folder)

    @property
    def is_over(self) -> bool:
        return self._process.returncode is not None

    async def wait_answering(self, answers: Callable[[], Awaitable[bool]], within_s: float) -> None:
        """Returns once it answers; EngineError if it ends before, or takes longer."""
        try:
            async with asyncio.timeout(within_s):
                while True:
                    if self.is_over:
                        raise self._ended()
                    with suppress(EngineError):
                        if await answers():
                            return
                    await asyncio.sleep(POLL_S)
        except TimeoutError as error:
            message = f"engine {self._name}: its server did not answer within {within_s:g} s"
            raise EngineError(message) from error

    def _ended(self) -> EngineError:
        hint = "cells.server.python names the environment that it is installed in"
        message = f"engine {self._name}: its server ended while starting, as told above; {hint}"
        return EngineError(message)

    async def wait(self) -> None:
        """Returns when it has ended."""
        await self._process.wait()

    async def end(self) -> None:
        """Nothing of it is left."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGTERM)
        with suppress(TimeoutError):
            async with asyncio.timeout(END_S):
                await self._process.wait()
        assert self._process.stdin is not None
        # The guard process ends what is left of it.
        self._process.stdin.close()
        await self._process.wait()
        await self._process.close()
        # It is gone already, unless the guard process was killed as well.
        shutil.rmtree(self._folder, ignore_errors=True)


ServerKind = Literal["vllm", "sglang"]
HOST = "127.0.0.1"
PLUGIN = Path(__file__).with_name("vllm_plugin.py")
PLUGIN_MODULE = "gyre_vllm_weights"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """Model, device, sizes and folder with which a cell starts its server."""

    model: Path
    """A folder with configuration, weights and tokenizer."""
    version: int
    dtype: str
    """As torch spells it: float32."""
    device: str
    """cpu, cuda or cuda:N."""
    seed: int
    kv_token_bytes: int
    """Keys and values of one token, all layers together."""
    engine: EngineConfig
    server: ServerConfig
    folder: Path
    """The server's own, which no other user can read."""
    python: str
    """What runs it if the section names nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerCommand:
    """A server that may be started, and where it will answer."""

    command: tuple[str, ...]
    variables: dict[str, str] = field(default_factory=dict)
    url: str
    socket: Path | None = None
    """Where it listens, if that is no port."""
    key: str | None = None
    """What it wants to be shown."""


def vllm(wanted: ServerSettings) -> ServerCommand:
    """It listens on a socket in its folder: most of its requests need no key."""
    engine, server = wanted.engine, wanted.server
    socket = wanted.folder / "vllm"
    options = [
        *("--model", str(wanted.model), "--uds", str(socket)),
        *("--dtype", wanted.dtype, "--seed", str(wanted.seed)),
        *("--max-num-seqs", str(engine.capacity)),
        *("--max-num-batched-tokens", str(engine.prefill_tokens)),
        *("--generation-config", "vllm", "--logprobs-mode", "processed_logprobs"),
        *("--weight-transfer-config", json.dumps({"backend": "gyre"})),
        *("--enable-scale-out", "--disable-uvicorn-access-log"),
    ]
    if engine.block_tokens is not None:
        options += ["--block-size", str(engine.block_tokens)]
    if engine.kv_tokens is not None:
        num_bytes = engine.kv_tokens * wanted.kv_token_bytes
        options += ["--kv-cache-memory-bytes", str(num_bytes)]
    if wanted.device != "cpu":
        options += ["--enable-sleep-mode"]
    variables = {"VLLM_SERVER_DEV_MODE": "1", "VLLM_NO_USAGE_STATS": "1"} | dict(server.env)
    # In front of what the section names, and without what this process has for its own.
    paths = (str(_plugin(wanted.folder)), variables.get("PYTHONPATH", ""))
    variables["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    return ServerCommand(
        command=(*_python(wanted), "vllm.entrypoints.openai.api_server", *options, *server.args),
        variables=_on(wanted.device) | variables,
        url="http://localhost",
        socket=socket,
    )


def sglang(wanted: ServerSettings, *, port: int, key: str) -> ServerCommand:
    """It has ports only, so that its requests need a key, in a file no other user can read."""
    engine, server = wanted.engine, wanted.server
    told = wanted.folder / "sglang.yaml"
    told.touch(mode=0o600)
    told.write_text(f"api-key: {json.dumps(key)}\nport: {port}\n")
    options = [
        *("--config", str(told), "--host", HOST),
        *("--model-path", str(wanted.model), "--weight-version", str(wanted.version)),
        *("--dtype", wanted.dtype, "--random-seed", str(wanted.seed)),
        *("--max-running-requests", str(engine.capacity)),
        *("--chunked-prefill-size", str(engine.prefill_tokens)),
        *("--sampling-defaults", "openai", "--incremental-streaming-output"),
        *("--log-level", "warning"),
    ]
    if engine.block_tokens is not None:
        options += ["--page-size", str(engine.block_tokens)]
    if engine.kv_tokens is not None:
        options += ["--max-total-tokens", str(engine.kv_tokens)]
    if wanted.device == "cpu":
        options += ["--device", "cpu"]
    else:
        options += ["--enable-memory-saver", "--enable-weights-cpu-backup"]
    # Else it samples a token to say that it is well, which takes for ever while it is paused.
    variables = {"SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION": "0"}
    # What this process has for its own is of another environment.
    variables["PYTHONPATH"] = ""
    return ServerCommand(
        command=(*_python(wanted), "sglang.launch_server", *options, *server.args),
        variables=variables | _on(wanted.device) | dict(server.env),
        url=f"http://{HOST}:{port}",
        key=key,
    )


def _python(wanted: ServerSettings) -> tuple[str, str]:
    named = wanted.server.python
    python = Path(wanted.python if named is None else named).expanduser()
    if not python.is_file():
        message = f"cells.server.python: expected an interpreter, found no file {python}"
        raise ConfigError(message)
    return str(python), "-m"


def _on(device: str) -> dict[str, str]:
    variables = {"HF_HUB_OFFLINE": "1"}
    _, _, number = device.partition(":")
    if not number:
        return variables
    # Numbers count the devices that this process sees, which may be some of the machine's.
    seen = os.environ.get("CUDA_VISIBLE_DEVICES")
    device = seen.split(",")[int(number)].strip() if seen else number
    return variables | {"CUDA_VISIBLE_DEVICES": device}


def _plugin(folder: Path) -> Path:
    """A folder from which vLLM's interpreter can import the plug-in, and finds that it may."""
    place = folder / "plugin"
    about = place / f"{PLUGIN_MODULE}-1.dist-info"
    about.mkdir(parents=True)
    (place / f"{PLUGIN_MODULE}.py").write_bytes(PLUGIN.read_bytes())
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {PLUGIN_MODULE}\nVersion: 1\n")
    (about / "entry_points.txt").write_text(
        f"[vllm.general_plugins]\ngyre = {PLUGIN_MODULE}:register\n"
    )
    return place
