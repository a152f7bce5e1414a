"""Who is measured: how each peer is started, and how an execution reaches it."""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.peers.load import Route
from benchmarks.peers.processes import free_port, get, running

from gyre.proxy.admin_client import control

ROOT = Path(__file__).parents[2]
CACHE = ROOT / "build" / "bench"
CHAT = "/v1/chat/completions"

LITELLM_CONFIG = """\
model_list:
  - model_name: policy
    litellm_params: {{model: openai/policy, api_base: "{upstream}/v1", api_key: none}}
litellm_settings: {{num_retries: 0, request_timeout: 600, telemetry: false}}
"""
QUIET = {
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "LITELLM_TELEMETRY": "False",
    "LITELLM_LOG": "ERROR",
    "LITELLM_MODE": "PRODUCTION",
    "NO_DOCS": "True",
    "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true",
    "AGENTOPS_API_KEY": "",
}
"""Everything that keeps litellm from fetching, counting, printing or checking more than it must."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Where a peer is to run."""

    upstream: str
    """Base address of the mock engine."""
    folder: Path
    """Empty, its own, deleted after."""
    num_routes: int
    """Executions that will call at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """A peer that answers."""

    pid: int
    port: int
    routes: list[Route]
    tokens: Callable[[], int | None] = lambda: None
    """Tokens it stores; None for a peer that stores none."""


Start = Callable[[Setting], AbstractContextManager[Started]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """One contestant."""

    name: str
    python: Path
    """Interpreter of its own environment."""
    packages: tuple[str, ...]
    """Distributions whose versions a result names."""
    remembers: bool
    """Whether a long history must be built call by call before it is one."""
    start: Start


@contextmanager
def _passthrough(setting: Setting) -> Iterator[Started]:
    port = free_port()
    command = _module(setting, "passthrough", port)
    with _running(setting, command, port, probe="/health") as pid:
        yield Started(pid=pid, port=port, routes=[Route(path=CHAT)] * setting.num_routes)


@contextmanager
def _parse_hash_journal(setting: Setting) -> Iterator[Started]:
    port = free_port()
    journal = f"--journal={setting.folder / 'journal'}"
    command = [*_module(setting, "parse_hash_journal", port), journal]
    with _running(setting, command, port, probe="/health") as pid:
        yield Started(pid=pid, port=port, routes=[Route(path=CHAT)] * setting.num_routes)


@contextmanager
def _litellm(setting: Setting) -> Iterator[Started]:
    port = free_port()
    config = setting.folder / "litellm.yaml"
    config.write_text(LITELLM_CONFIG.format(upstream=setting.upstream))
    command = [str(LITELLM.with_name("litellm")), f"--config={config}", "--host=127.0.0.1"]
    command += [f"--port={port}", "--num_workers=1"]
    with _running(setting, command, port, probe="/health/liveliness") as pid:
        yield Started(pid=pid, port=port, routes=[Route(path=CHAT)] * setting.num_routes)


@contextmanager
def _agent_lightning(setting: Setting) -> Iterator[Started]:
    port = free_port()
    routes = setting.folder / "routes.json"
    script = Path(__file__).with_name("agent_lightning.py")
    command = [str(AGENT_LIGHTNING), str(script), f"--port={port}"]
    command += [f"--upstream={setting.upstream}", f"--routes={routes}"]
    command += [f"--num-routes={setting.num_routes}"]
    with _running(setting, command, port, probe="/health/liveliness") as pid:
        # The routes are written once the server's own health check has passed.
        deadline = time.monotonic() + 60
        while not routes.exists():
            if time.monotonic() > deadline:
                raise TimeoutError("Agent Lightning named no rollouts within 60 s")
            time.sleep(0.1)
        paths = json.loads(routes.read_text())
        yield Started(pid=pid, port=port, routes=[Route(path=path + CHAT) for path in paths])


@contextmanager
def _gyre(setting: Setting) -> Iterator[Started]:
    port = free_port()
    run = setting.folder / "run"
    command = [*GYRE, "proxy", f"--engine=sglang={setting.upstream}", f"--run={run}"]
    command += [f"--model={CACHE / 'tokenizer'}", "--family=qwen3", f"--port={port}"]
    command += ["--context=1000000", "--capacity=1024", "--calls-per-minute=1000000"]
    with _running(setting, command, port, probe="/health") as pid:
        routes = []
        for _ in range(setting.num_routes):
            found = control(run, "POST", "executions", {})
            headers = {"authorization": f"Bearer {found['key']}"}
            routes.append(Route(path=found["path"] + CHAT, headers=headers))
        yield Started(pid=pid, port=port, routes=routes, tokens=lambda: _tree_tokens(port))


def _tree_tokens(port: int) -> int:
    for line in get(port, "/metrics").decode().splitlines():
        if line.startswith("gyre_tree_tokens "):
            return round(float(line.split()[1]))
    raise LookupError("/metrics: expected gyre_tree_tokens")


def _module(setting: Setting, name: str, port: int) -> list[str]:
    module = f"benchmarks.peers.{name}"
    return [str(OWN), "-m", module, f"--port={port}", f"--upstream={setting.upstream}"]


def _running(
    setting: Setting, command: list[str], port: int, probe: str
) -> AbstractContextManager[int]:
    log = setting.folder / "server.log"
    return running(command, port=port, probe=probe, environment=QUIET, log=log)


OWN = ROOT / ".venv" / "bin" / "python"
GYRE = [str(OWN.with_name("gyre"))]
LITELLM = ROOT / ".venv-litellm" / "bin" / "python"
AGENT_LIGHTNING = ROOT / ".venv-agentlightning" / "bin" / "python"
HTTP = ("uvicorn", "uvloop", "httptools", "aiohttp", "orjson")

PEERS = {
    peer.name: peer
    for peer in (
        Peer(
            name="passthrough",
            python=OWN,
            packages=HTTP,
            remembers=False,
            start=_passthrough,
        ),
        Peer(
            name="parse-hash-journal",
            python=OWN,
            packages=(*HTTP, "xxhash"),
            remembers=False,
            start=_parse_hash_journal,
        ),
        Peer(
            name="litellm",
            python=LITELLM,
            packages=("litellm", "fastapi", *HTTP),
            remembers=False,
            start=_litellm,
        ),
        Peer(
            name="agent-lightning",
            python=AGENT_LIGHTNING,
            packages=("agentlightning", "litellm", "fastapi", *HTTP),
            remembers=False,
            start=_agent_lightning,
        ),
        Peer(
            name="gyre",
            python=OWN,
            packages=(*HTTP, "msgspec", "numpy", "renderers", "tokenizers", "xxhash"),
            remembers=True,
            start=_gyre,
        ),
    )
}
