"""The proxy's control requests: open and seal executions, routes, engines, status."""

import hmac
from typing import Any, TypeVar

import aiohttp
import msgspec

from gyre.inference.clients.registry import connect
from gyre.net.http_server import Exchange
from gyre.proxy.executions import ExecutionRegistry
from gyre.proxy.routing.router import Router
from gyre.proxy.spec import moved_address
from gyre.types.errors import ConfigError, NotFound, RequestError, Unauthorized, Unavailable
from gyre.types.ids import EngineName, ExecutionId
from gyre.version import fingerprint

PREFIX = "/gyre/"
MOST_ROUTES_BYTES = 64 * 2**20
"""More than a hundred thousand executions at once take."""
T = TypeVar("T")


class OpenExecution(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a request to open an execution."""

    id: str | None = None


class NewRoutes(msgspec.Struct, forbid_unknown_fields=True):
    """The body of an order: executions with their engines, None for those that lose theirs."""

    version: int
    routes: dict[str, str | None]


class NewController(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a request that hands the proxy over: the token that counts from now on."""

    token: str


class NewAddress(msgspec.Struct, forbid_unknown_fields=True):
    """The body of an order: where an engine is from now on."""

    url: str


def show(session: aiohttp.ClientSession, key: str) -> None:
    """The session shows this key from now on."""
    session.headers["Authorization"] = f"Bearer {key}"


class AdminApi:
    """Answers requests under /gyre/ that carry the run's admin token."""

    def __init__(
        self,
        executions: ExecutionRegistry,
        router: Router,
        token: str,
        *,
        session: aiohttp.ClientSession | None = None,
    ) -> None:
        """Engines are asked over the session; without it none moves, and no other controller takes
        over."""
        if not token:
            raise ConfigError("the admin token is empty, and nobody could be told apart")
        self._executions = executions
        self._router = router
        self._token = token
        self._session = session
        self._version = fingerprint()
        self.num_asked = 0
        """Requests with the right token."""

    async def answer(self, exchange: Exchange) -> None:
        try:
            await self._answer(exchange)
        except OSError as error:
            raise Unavailable(f"the disk does not take it: {error}") from error

    async def _answer(self, exchange: Exchange) -> None:
        given = exchange.headers.get("authorization", "").removeprefix("Bearer ")
        if not hmac.compare_digest(given.encode(), self._token.encode()):
            raise Unauthorized("expected the run's admin token")
        self.num_asked += 1
        match exchange.method, exchange.path.removeprefix(PREFIX).split("/"):
            case "POST", ["executions"]:
                found = await self._open(exchange)
            case "PUT", ["executions", name]:
                found = self._open_once(name)
            case "POST", ["executions", name, "close"]:
                found = self._close(ExecutionId(name))
            case "GET", ["status"]:
                found = self._status()
            case "PUT", ["routes"]:
                found = await self._assign(exchange)
            case "POST", ["take-over"] if self._session is not None and self._router.takes_routes:
                found = await self._hand_over(exchange, self._session)
            case "POST", ["engines", name, "vacated"]:
                await self._router.wait_drained(EngineName(name))
                found = {"engine": name, "counts": msgspec.to_builtins(self._router.counts)}
            case "PUT", ["engines", name] if self._session is not None:
                found = await self._readdress(exchange, EngineName(name), self._session)
            case "POST", ["engines", name, "drain"]:
                await self._router.drain(EngineName(name))
                found = self._status()
            case "POST", ["engines", name, "resume"]:
                self._router.resume(EngineName(name))
                found = self._status()
            case _:
                raise NotFound(f"{exchange.method} {exchange.path}: no such control")
        await exchange.answer(200, msgspec.json.encode(found))

    def held(self) -> dict[str, float]:
        """Seconds that calls waited without an engine, by open execution."""
        held = self._router.held
        return {execution.id: held.of(execution.id) for execution in self._executions.loaded}

    async def _open(self, exchange: Exchange) -> dict[str, Any]:
        asked = await _order(exchange, OpenExecution, empty=b"{}")
        try:
            execution, key = self._executions.create(asked.id)
        except ConfigError as error:
            raise RequestError(str(error)) from error
        return {"id": execution.id, "key": key, "path": f"/exec/{execution.id}"}

    def _open_once(self, name: str) -> dict[str, Any]:
        """Gives a key once: a client that asks again because the answer was lost gets none."""
        try:
            key = None if self._executions.exists(name) else self._executions.create(name)[1]
        except ConfigError as error:
            raise RequestError(str(error)) from error
        return {"id": name, "key": key, "path": f"/exec/{name}"}

    async def _hand_over(
        self, exchange: Exchange, session: aiohttp.ClientSession
    ) -> dict[str, Any]:
        """An earlier controller that wakes up is refused from now on."""
        asked = await _order(exchange, NewController)
        if not asked.token or not (asked.token.isascii() and asked.token.isprintable()):
            raise RequestError("expected a token of printable ASCII", where="token")
        show(session, asked.token)
        self._token = asked.token
        return {"version": self._version}

    async def _readdress(
        self, exchange: Exchange, name: EngineName, session: aiohttp.ClientSession
    ) -> dict[str, Any]:
        asked = await _order(exchange, NewAddress)
        if not asked.url.startswith("http://"):
            raise RequestError("expected an address that begins with http://", where="url")
        self._router.set_address(await connect(moved_address(name, asked.url), session))
        return {"engine": name, "url": asked.url}

    def _close(self, execution: ExecutionId) -> dict[str, Any]:
        committed = self._executions.seal(execution)
        held_s = self._router.held.of(execution)
        self._router.held.forget(execution)
        return {"id": execution, "closed": True, "committed": committed, "held_s": held_s}

    async def _assign(self, exchange: Exchange) -> dict[str, Any]:
        asked = await _order(exchange, NewRoutes, most_bytes=MOST_ROUTES_BYTES)
        changes = {
            execution: None if name is None else EngineName(name)
            for execution, name in asked.routes.items()
        }
        return {"version": asked.version, "moved": self._router.assign(asked.version, changes)}

    def _status(self) -> dict[str, Any]:
        return {
            "executions": {
                execution.id: {
                    "calls": len(execution.session.tree.calls),
                    "in_flight": execution.in_flight,
                    "tokens": execution.session.tree.num_tokens,
                    "held_s": self._router.held.of(execution.id),
                }
                for execution in self._executions.loaded
            },
            "routes": self._router.routes_version,
            "engines": [msgspec.to_builtins(status) for status in self._router.engines()],
        }


async def _order(
    exchange: Exchange, kind: type[T], *, most_bytes: int = 65536, empty: bytes = b""
) -> T:
    """The body of a request, `empty` for none; RequestError for what is no order of this kind."""
    body = await exchange.body(most_bytes=most_bytes, within_s=10)
    try:
        return msgspec.json.decode(body or empty, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise RequestError(str(error)) from error
