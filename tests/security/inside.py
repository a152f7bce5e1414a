"""Every listener's application in this process, asked without a network, so that no error hides."""

from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.inference.support.serving import Client, served

from gyre.cell.api import CellApi
from gyre.cell.api import CellApplication as Cell
from gyre.config.sections import LimitsConfig, ProxyConfig, RouterConfig
from gyre.controller.executions.facts_server import FactsServer
from gyre.proxy.admin_api import AdminApi
from gyre.proxy.call_handler import CallContext as CallDesk
from gyre.proxy.executions import ExecutionRegistry
from gyre.proxy.metrics import ProxyMetrics
from gyre.proxy.routing.engine_pool import Routes
from gyre.proxy.routing.router import Router
from gyre.proxy.server import Proxy
from gyre.storage.wal import WalWriter, WriteAheadLog
from gyre.testing.renderer import ByteRenderer
from gyre.transports.shared_memory import SharedTransport
from gyre.types.sampling import SamplingParams

TOKEN = "the-token-of-the-run"
BEARER = ("authorization", f"Bearer {TOKEN}")

ENDPOINTS = {
    "proxy": [
        ("POST", "/gyre/executions"),
        ("PUT", "/gyre/executions/x"),
        ("POST", "/gyre/executions/x/close"),
        ("POST", "/gyre/take-over"),
        ("GET", "/gyre/status"),
        ("PUT", "/gyre/routes"),
        ("PUT", "/gyre/engines/e"),
        ("POST", "/gyre/engines/e/vacated"),
        ("POST", "/gyre/engines/e/drain"),
        ("POST", "/gyre/engines/e/resume"),
    ],
    "desk": [("POST", "/facts")],
    "engine": [
        ("POST", "/generate"),
        ("POST", "/v1/completions"),
        ("POST", "/abort_request"),
        ("POST", "/pause_generation"),
        ("POST", "/continue_generation"),
        ("POST", "/update_weights_from_disk"),
        ("POST", "/release_memory_occupation"),
        ("POST", "/resume_memory_occupation"),
        ("POST", "/kv/pin"),
        ("POST", "/kv/release"),
        ("POST", "/kv/put"),
        ("POST", "/kv/take"),
        ("POST", "/kv/export"),
        ("POST", "/kv/import"),
        ("GET", "/model_info"),
        ("GET", "/get_model_info"),
        ("GET", "/server_info"),
        ("GET", "/get_server_info"),
        ("GET", "/weight_info"),
        ("GET", "/v1/models"),
    ],
    "cell": [
        ("GET", "/cell/health"),
        *(
            ("POST", f"/cell/{what}")
            for what in (
                *("enter", "leave", "expose", "pull", "meet", "reduce", "step", "spread"),
                *("save", "checkpoint", "offer", "load", "train", "score"),
            )
        ),
    ],
}
"""What each listener can be asked with the run's token."""


@dataclass
class Inside:
    """One client for each listener, and what they heard."""

    proxy: Client
    desk: Client
    engine: Client
    cell: Client
    executions: ExecutionRegistry
    application: Proxy
    """The proxy's own, for a listener."""
    heard: list = field(default_factory=list)

    def of(self, listener):
        return getattr(self, listener)


@asynccontextmanager
async def inside(folder: Path, *, session=None):
    """All of them with one token; the proxy routes by order and has no engine.

    The session shows the tokens of further controllers; without it there are none.
    """
    heard: list = []

    async def record(execution, entry):
        heard.append((execution, entry))

    commit = WalWriter(WriteAheadLog(folder))
    limits = LimitsConfig()
    executions = ExecutionRegistry(
        folder,
        ByteRenderer(),
        model="m",
        sampling=SamplingParams(),
        settings=ProxyConfig(),
        limits=limits,
        commit=commit,
    )
    share = folder / "share"
    share.mkdir()
    try:
        async with (
            Router([], RouterConfig(), routes=Routes()) as router,
            served(key=TOKEN, share=share) as engine,
        ):
            desk = CallDesk(router=router, commit=commit, metrics=ProxyMetrics(), ping_s=10)
            admin = AdminApi(executions, router, TOKEN, session=session)
            transport = SharedTransport(share, owner="cell-0")
            orders = CellApi(engine.engine, engine.network, None, transport)
            application = Proxy(executions, desk, admin, model="m", limits=limits)
            yield Inside(
                proxy=Client(application),
                desk=Client(FactsServer(TOKEN, record)),
                engine=engine,
                cell=Client(Cell(engine.server, orders, TOKEN)),
                executions=executions,
                application=application,
                heard=heard,
            )
            orders.close()
    finally:
        executions.close()
        commit.close()
