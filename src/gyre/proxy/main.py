"""The proxy process; what it does when its controller is gone."""

import asyncio
import gc
import os
import resource
import secrets
import signal
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import aiohttp
import msgspec
import uvloop

from gyre.aio import run_loop
from gyre.inference.clients.http import client
from gyre.inference.clients.registry import EngineAddress, connect, read_address
from gyre.net.http_server import listener, serve_until_told
from gyre.proxy.admin_api import AdminApi, show
from gyre.proxy.call_handler import CallContext
from gyre.proxy.executions import ExecutionRegistry
from gyre.proxy.metrics import ProxyMetrics
from gyre.proxy.routing.engine_pool import Routes
from gyre.proxy.routing.router import Router
from gyre.proxy.server import Proxy
from gyre.proxy.spec import ProxySpec, engines_of
from gyre.renderers.registry import load_renderer
from gyre.rollout.spec import read_proxy_totals, write_proxy_totals
from gyre.storage.files import TOKEN_FILE, proxy_address_file, read_key, read_plan
from gyre.storage.files import replace as replace_file
from gyre.storage.wal import WalWriter, WriteAheadLog
from gyre.types.errors import ConfigError, GyreError
from gyre.types.protocols import Engine, Renderer

LOOK_S = 5.0
"""How often it is noticed whether a controller has asked for anything; one asks every second."""


class OrphanMonitor:
    """Stops a proxy that has had no controller for too long."""

    def __init__(self, folder: Path, asked: AdminApi, *, alone_s: float) -> None:
        """`folder` is the run's."""
        self._attempts = folder / "attempts"
        self._asked = asked
        self._alone_s = alone_s

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        """While this lasts."""
        watch = asyncio.create_task(self._watch())
        try:
            yield
        finally:
            watch.cancel()
            with suppress(asyncio.CancelledError):
                await watch

    async def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        num_asked, since, held = self._asked.num_asked, loop.time(), self._asked.held()
        while True:
            await asyncio.sleep(min(LOOK_S, self._alone_s))
            before, held = held, self._asked.held()
            if self._asked.num_asked != num_asked:
                num_asked, since = self._asked.num_asked, loop.time()
            elif loop.time() - since >= self._alone_s:
                os.kill(os.getpid(), signal.SIGTERM)
                return
            else:
                await asyncio.to_thread(self._credit, held, before)

    def _credit(self, held: Mapping[str, float], before: Mapping[str, float]) -> None:
        """Deadlines move on by what calls waited, also without a controller (SPEC 6.1).

        The totals on the disk may be higher than this proxy's, because another ran before it.
        """
        for execution, held_s in held.items():
            folder = self._attempts / execution
            totals = read_proxy_totals(folder)
            all_s = max(held_s, totals.held_s + held_s - before.get(execution, 0.0))
            if all_s > totals.held_s and folder.is_dir():
                # A disk that is full now may take it the next time.
                with suppress(OSError):
                    write_proxy_totals(folder, replace(totals, held_s=all_s))


MANIFEST = "proxy.json"
MANY_FILES = 65_536
SEND_BYTES = 2**17
"""Kept small, because a reply counts as delivered once the kernel has taken it (SPEC 4.5)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningProxy:
    """The address, folder and keys of a proxy that has started."""

    url: str
    folder: Path
    renderer: str
    opened: dict[str, str]
    """Key of each execution opened at the start."""
    restored: int
    """Records that logs had lost with the machine and got back from the journal."""


async def serve(plan: ProxySpec, on_start: Callable[[RunningProxy], None]) -> None:
    """Runs until SIGINT or SIGTERM; calls in flight are finished first."""
    renderer = load_renderer(plan.model, family=plan.family, thinking=plan.thinking)
    token = prepare(plan, renderer)
    _many_files()
    # Trees are long-lived and acyclic; scanning them often costs more than it finds.
    gc.set_threshold(50_000, 50, 100)
    journal = WriteAheadLog(plan.folder, shard=plan.shard)
    commit = WalWriter(journal)
    executions = ExecutionRegistry(
        plan.folder,
        renderer,
        model=plan.model,
        sampling=plan.sampling,
        settings=plan.proxy,
        limits=plan.limits,
        commit=commit,
        shard=plan.shard,
    )
    try:
        routes = Routes() if plan.routed else None
        async with (
            client() as session,
            Router(
                await engines_at(engines_of(plan), session, key_file=plan.engine_key),
                plan.router,
                routes=routes,
            ) as router,
        ):
            context = CallContext(
                router=router, commit=commit, metrics=ProxyMetrics(), ping_s=plan.proxy.ping_s
            )
            admin = AdminApi(executions, router, token, session=session)
            app = Proxy(executions, context, admin, model=plan.model, limits=plan.limits)
            on = listener(plan.proxy.host, plan.proxy.port, send_bytes=SEND_BYTES)
            opened = {
                name: executions.create(name)[1]
                for name in plan.open
                if not executions.exists(name)
            }
            host, port = on.getsockname()[:2]
            url = f"http://{host}:{port}"
            replace_file(proxy_address_file(plan.folder, plan.shard), url.encode())
            started = RunningProxy(
                url=url,
                folder=plan.folder,
                renderer=renderer.name,
                opened=opened,
                restored=journal.num_restored,
            )
            alone = OrphanMonitor(plan.folder, admin, alone_s=plan.proxy.alone_s)
            async with alone.watching() if plan.routed else nullcontext():
                await serve_until_told(app, on, on_start=lambda: on_start(started))
    finally:
        executions.close()
        commit.close()


def prepare(plan: ProxySpec, renderer: Renderer) -> str:
    """The run folder with its manifest and admin token, made once and then checked."""
    plan.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    manifest = {"format": 1, "model": plan.model, "renderer": renderer.name}
    path = plan.folder / MANIFEST
    if path.exists():
        found = msgspec.json.decode(path.read_bytes())
        if found.get("renderer") != renderer.name:
            raise ConfigError(
                f"{plan.folder}: recorded with renderer {found.get('renderer')!r}, "
                f"asked to go on with {renderer.name!r}"
            )
    elif plan.shard == 0:
        # Whole at once, because other shards start meanwhile.
        replace_file(path, msgspec.json.encode(manifest))
    secret = plan.folder / TOKEN_FILE
    if not secret.exists():
        replace_file(secret, secrets.token_urlsafe(32).encode(), is_secret=True)
    token = secret.read_text().strip()
    if not token:
        raise ConfigError(f"{secret}: expected the admin token, found nothing")
    return token


@asynccontextmanager
async def connected(
    addresses: Sequence[str], *, key_file: Path | None = None
) -> AsyncIterator[list[Engine]]:
    """Engines at their addresses, over one client session that shows the key, if there is one."""
    async with client() as session:
        found = [read_address(address) for address in addresses]
        yield await engines_at(found, session, key_file=key_file)


async def engines_at(
    addresses: Sequence[EngineAddress], session: aiohttp.ClientSession, *, key_file: Path | None
) -> list[Engine]:
    if not addresses:
        raise ConfigError("engine: expected at least one, such as sglang=http://127.0.0.1:30000")
    key = read_key(key_file)
    if key is not None:
        show(session, key)
    return [await connect(address, session) for address in addresses]


def _many_files() -> None:
    """One log and one connection per execution need more files than a shell allows by default."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MANY_FILES if hard == resource.RLIM_INFINITY else min(hard, MANY_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def run(plan: ProxySpec, on_start: Callable[[RunningProxy], None]) -> None:
    """The process's whole life; what it writes is for its own user alone."""
    os.umask(0o077)
    run_loop(serve(plan, on_start), loop_factory=uvloop.new_event_loop)


def main(arguments: Sequence[str]) -> int:
    """The same for a plan in a file; prints `ready URL` once it takes calls."""
    if len(arguments) != 1:
        sys.stderr.write("gyre proxy: expected one argument, the file with its plan\n")
        return 2
    try:
        plan = read_plan(Path(arguments[0]), ProxySpec)
        run(plan, lambda started: print(f"ready {started.url}", flush=True))
    except GyreError as error:
        sys.stderr.write(f"gyre proxy: {type(error).__name__}: {error}\n")
        return 2 if isinstance(error, ConfigError) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
