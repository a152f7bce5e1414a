"""The dashboard's web app, and its process beside a run that is being trained.

Rule 1: a page that cannot be shown is no reason not to train.
Rule 2: only a browser that was given the link may read it: the key in the link becomes a cookie,
because trees hold what agents read and wrote.
Rule 3: it answers only to names of this machine, so that no page of the web can reach it through a
name of its own.
"""

import asyncio
import hmac
import os
import secrets
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import parse_qsl, urlsplit

import msgspec
import uvloop

from gyre.aio import run_loop
from gyre.net.http_server import (
    EVENTS,
    ClientGone,
    Exchange,
    Receive,
    Scope,
    Send,
    listener,
    serve_until_told,
)
from gyre.observability.dashboard import api
from gyre.observability.dashboard.execution_view import RunTrees
from gyre.observability.dashboard.journal_follower import FollowedRun, watched
from gyre.observability.dashboard.series import ViewWindow
from gyre.observability.dashboard.tree_sizes import TreeSizes
from gyre.observability.dashboard.views import NewsCursor
from gyre.types.errors import ConfigError, LogDamaged, NotFound, RequestError, Unauthorized

READY_S = 20.0
STOP_S = 5.0


@contextmanager
def shown_beside(folder: Path) -> Iterator[str | None]:
    """The link to its page while this lasts; None where there is none."""
    try:
        process = _started(folder)
    except OSError:
        yield None
        return
    try:
        yield _link(process)
    finally:
        _end(process)


def _started(folder: Path) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "gyre.observability.dashboard.server", str(folder)],
        # It holds the other end, which says that this process is gone, however it went.
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )


def _link(process: "subprocess.Popen[str]") -> str | None:
    assert process.stdout is not None
    ready, _, _ = select.select([process.stdout], [], [], READY_S)
    return process.stdout.readline().strip() or None if ready else None


def _end(process: "subprocess.Popen[str]") -> None:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.close()
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    process.stdout.close()


FOLDER = Path(__file__).parent / "page"
KINDS = {
    ".html": b"text/html; charset=utf-8",
    ".js": b"text/javascript; charset=utf-8",
    ".css": b"text/css; charset=utf-8",
    ".svg": b"image/svg+xml",
}
"""Files that the page consists of."""
FRONT = "index.html"
HEADERS = {
    b"content-security-policy": b"default-src 'self'; base-uri 'none'; form-action 'none'; "
    b"frame-ancestors 'none'; object-src 'none'",
    b"x-content-type-options": b"nosniff",
    b"referrer-policy": b"no-referrer",
    b"cross-origin-resource-policy": b"same-origin",
    b"cache-control": b"no-store",
}
NEWS_S = 0.25
"""Time between two news of a run."""
PING_S = 15.0
MOST_QUERY = 2048


class TreeSource(Protocol):
    """Trees of a run's executions as plain values; blocks."""

    def tree(self, execution: str) -> dict[str, Any]: ...

    def call(self, execution: str, number: int) -> dict[str, Any]: ...

    def left(self, execution: str) -> dict[str, Any]: ...


class _Refused(RequestError):
    status = 403


class _NoMethod(RequestError):
    status = 405


class _Damaged(RequestError):
    status = 422


class DashboardServer:
    """Answers browsers that have the key; `stop` ends the streams of news."""

    def __init__(
        self,
        runs: Mapping[str, FollowedRun],
        *,
        key: str,
        trees: Callable[[Path], TreeSource],
        folder: Path = FOLDER,
    ) -> None:
        if not key:
            raise ConfigError("the key of the page is empty, and anybody could read it")
        self._runs = runs
        self._key = key
        self._make_trees = trees
        self._trees: dict[str, TreeSource] = {}
        """Made when they are first asked for: a run that begins has not said all it will."""
        self._opening = asyncio.Lock()
        self._sizes = {one: TreeSizes(run) for one, run in runs.items() if run.folder is not None}
        self._files = {path.name: path for path in folder.iterdir() if path.suffix in KINDS}
        self._stopping = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        exchange = Exchange(scope, receive, send)
        try:
            await self._answer(exchange, scope)
        except RequestError as error:
            await _json(exchange, {"error": str(error)}, status=error.status)
        except ClientGone:
            return

    async def stop(self) -> None:
        self._stopping.set()

    async def _answer(self, exchange: Exchange, scope: Scope) -> None:
        if exchange.method not in ("GET", "HEAD"):
            raise _NoMethod(f"{exchange.method}: expected GET")
        host = exchange.headers.get("host", "")
        if not is_local(host):
            raise _Refused(f"host {host!r}: expected a name of this machine")
        query = _query(scope["query_string"])
        if exchange.path == "/" and "key" in query:
            await self._let_in(exchange, query["key"], host)
            return
        self._check_key(exchange, host)
        if exchange.path == "/" or exchange.path.startswith("/page/"):
            await self._file(exchange)
        elif exchange.path == "/api/news":
            await self._news(exchange)
        else:
            await _json(exchange, await self._asked(exchange.path, query))

    # Who may ask

    async def _let_in(self, exchange: Exchange, key: str, host: str) -> None:
        """The key leaves the address, where it could be read over a shoulder."""
        self._check(key)
        cookie = f"{_cookie_name(host)}={self._key}; HttpOnly; SameSite=Strict; Path=/"
        extra = {b"location": b"/", b"set-cookie": cookie.encode()}
        await exchange.answer(303, b"", b"text/plain", HEADERS | extra)

    def _check_key(self, exchange: Exchange, host: str) -> None:
        found = _cookie(exchange.headers.get("cookie", ""), _cookie_name(host))
        bearer = exchange.headers.get("authorization", "").removeprefix("Bearer ")
        self._check(bearer if found is None else found)

    def _check(self, given: str) -> None:
        if not hmac.compare_digest(given.encode(), self._key.encode()):
            raise Unauthorized("expected the link that gyre printed, with its key")

    # What is answered

    async def _file(self, exchange: Exchange) -> None:
        name = FRONT if exchange.path == "/" else exchange.path.removeprefix("/page/")
        if name not in self._files:
            raise NotFound(f"{exchange.path}: no such file")
        path = self._files[name]
        data = await asyncio.to_thread(path.read_bytes)
        await exchange.answer(200, data, KINDS[path.suffix], HEADERS)

    async def _asked(self, path: str, query: Mapping[str, str]) -> Any:
        for run in self._runs.values():
            await run.wait_read()
        match path:
            case "/api/runs":
                return api.runs(self._runs)
            case "/api/story":
                return api.history(self._runs, query, self._sizes_of)
            case "/api/executions":
                return api.executions(self._runs, query)
            case "/api/tree" | "/api/call" | "/api/left":
                return await self._tree(path.removeprefix("/api/"), query)
            case _:
                raise NotFound(f"{path}: no such path")

    def _sizes_of(self, run: FollowedRun, view: ViewWindow) -> dict[str, Any] | None:
        sizes = self._sizes.get(run.key)
        return None if sizes is None else sizes.panel(view)

    async def _tree(self, what: str, query: Mapping[str, str]) -> Any:
        api.known(query, "run", "execution", *(["call"] if what == "call" else []))
        run = api.run_of(self._runs, query)
        if run.folder is None or "execution" not in query:
            raise NotFound(f"{run.name}: expected an execution of a run with call logs")
        execution = query["execution"]
        try:
            trees = await self._trees_of(run.key, run.folder)
            match what:
                case "tree":
                    found = await asyncio.to_thread(trees.tree, execution)
                    return found | {"is_held_out": run.is_held_out(execution)}
                case "left":
                    return await asyncio.to_thread(trees.left, execution)
                case _:
                    call = api.whole(query, "call", 0, most=2**31)
                    return await asyncio.to_thread(trees.call, execution, call)
        except ConfigError as error:
            raise NotFound(str(error)) from error
        except LogDamaged as error:
            raise _Damaged(str(error)) from error

    async def _trees_of(self, key: str, folder: Path) -> TreeSource:
        """Made once, however many ask for them at once."""
        async with self._opening:
            if key not in self._trees:
                self._trees[key] = await asyncio.to_thread(self._make_trees, folder)
        return self._trees[key]

    # News

    async def _news(self, exchange: Exchange) -> None:
        """Every run once, and again whenever there is something new, until the client is gone."""
        await exchange.start(200, EVENTS, HEADERS)
        tasks: list[asyncio.Task[Any]] = [
            asyncio.create_task(exchange.gone()),
            asyncio.create_task(self._stopping.wait()),
            asyncio.create_task(_ping(exchange)),
            *(asyncio.create_task(self._send_news(exchange, run)) for run in self._runs.values()),
        ]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        for task in done:
            task.result()
        await exchange.write(b"", last=True)

    async def _send_news(self, exchange: Exchange, run: FollowedRun) -> None:
        newest = NewsCursor()
        history = run.history
        while True:
            if history is not run.history:
                history, newest = run.history, NewsCursor()
            mark = run.mark
            data = msgspec.json.encode(api.news(run, newest))
            await exchange.write(b"event: news\ndata: " + data + b"\n\n")
            await asyncio.sleep(NEWS_S)
            await run.wait_news(mark)


async def _ping(exchange: Exchange) -> None:
    """So that both sides notice when the other is gone."""
    while True:
        await asyncio.sleep(PING_S)
        await exchange.write(b": ping\n\n")


async def _json(exchange: Exchange, value: Any, *, status: int = 200) -> None:
    await exchange.answer(status, msgspec.json.encode(value), extra=HEADERS)


def is_local(host: str) -> bool:
    """Whether a Host header names this machine."""
    try:
        name = urlsplit(f"//{host}").hostname
    except ValueError:
        return False
    return name in ("127.0.0.1", "localhost", "::1")


def _cookie_name(host: str) -> str:
    """By port, because browsers keep one set of cookies for all ports of a machine."""
    try:
        return f"gyre-{urlsplit(f'//{host}').port or 80}"
    except ValueError:
        return "gyre"


def _cookie(header: str, name: str) -> str | None:
    """Beside it may be anything, because other programs of this machine leave cookies too."""
    pairs = (cookie.partition("=") for cookie in header.split(";"))
    return next((value.strip() for key, _, value in pairs if key.strip() == name), None)


def _query(text: bytes) -> dict[str, str]:
    if len(text) > MOST_QUERY:
        raise RequestError(f"query: expected at most {MOST_QUERY} bytes")
    return dict(parse_qsl(text.decode("latin-1"), keep_blank_values=True))


HOST = "127.0.0.1"


def show(
    places: list[Path], *, port: int, on_start: Callable[[str], None], waits: bool = False
) -> None:
    """Runs until SIGINT or SIGTERM; `on_start` is given the link, with its key.

    Runs that it `waits` for may not have begun.
    """
    run_loop(
        _show(watched(places, waits=waits), port, on_start), loop_factory=uvloop.new_event_loop
    )


async def _show(runs: dict[str, FollowedRun], port: int, on_start: Callable[[str], None]) -> None:
    key = secrets.token_urlsafe(24)
    page = DashboardServer(runs, key=key, trees=RunTrees)
    with closing(listener(HOST, port)) as on:
        link = f"http://{HOST}:{on.getsockname()[1]}/?key={key}"
        async with asyncio.TaskGroup() as group:
            following = [group.create_task(run.follow()) for run in runs.values()]
            await serve_until_told(page, on, on_start=lambda: on_start(link), stopping=page.stop)
            for task in following:
                task.cancel()


def main(folder: Path) -> None:
    """Shows a run that is about to begin, until the command that started this closes stdin."""

    def look() -> None:
        if not os.read(stdin, 2**16):
            asyncio.get_running_loop().remove_reader(stdin)
            os.kill(os.getpid(), signal.SIGTERM)

    def on_start(link: str) -> None:
        asyncio.get_running_loop().add_reader(stdin, look)
        print(link, flush=True)

    stdin = sys.stdin.fileno()
    show([folder], port=0, on_start=on_start, waits=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
