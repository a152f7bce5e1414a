"""The controller's HTTP server to which supervisors post the facts of their executions."""

import hmac
import secrets
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec

from gyre.net.http_server import ClientGone, Exchange, Receive, Scope, Send
from gyre.rollout.facts import FactEntry, decode
from gyre.storage.files import replace
from gyre.types.errors import ConfigError, NotFound, RequestError, Unauthorized
from gyre.types.ids import ExecutionId

PATH = "/facts"
MOST_BYTES = 2**20
BODY_S = 10.0


class _Named(msgspec.Struct):
    execution: str


class FactsEndpoint(msgspec.Struct, frozen=True):
    """Port and token of the facts server; a run's later controllers take the same if they can."""

    port: int
    token: str


def recorded_endpoint(path: Path) -> FactsEndpoint:
    """Those of an earlier controller, or new ones: any port, and a token of their own."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=FactsEndpoint)
    except (OSError, msgspec.MsgspecError):
        return FactsEndpoint(port=0, token=secrets.token_urlsafe(32))


def note(path: Path, found: FactsEndpoint) -> None:
    """Writes it for the next controller, readable by the user alone."""
    replace(path, msgspec.json.encode(found), is_secret=True)


class FactsServer:
    """Takes facts from supervisors, which show the token."""

    def __init__(
        self, token: str, receive: Callable[[ExecutionId, FactEntry], Awaitable[None]]
    ) -> None:
        if not token:
            raise ConfigError("the token of facts is empty, and anybody could post them")
        self._token = token
        self._receive = receive

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        exchange = Exchange(scope, receive, send)
        try:
            await self._answer(exchange)
        except RequestError as error:
            said = {"error": {"message": str(error)}}
            await exchange.answer(error.status, msgspec.json.encode(said))
        except ClientGone:
            return

    async def _answer(self, exchange: Exchange) -> None:
        given = exchange.headers.get("authorization", "").removeprefix("Bearer ")
        if not hmac.compare_digest(given.encode(), self._token.encode()):
            raise Unauthorized("expected the token that supervisors are told")
        if (exchange.method, exchange.path) != ("POST", PATH):
            raise NotFound(f"{exchange.method} {exchange.path}: no such path")
        body = await exchange.body(most_bytes=MOST_BYTES, within_s=BODY_S)
        try:
            named = msgspec.json.decode(body, type=_Named)
            entry = decode(body)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise RequestError(str(error)) from error
        await self._receive(ExecutionId(named.execution), entry)
        await exchange.answer(200, b"{}")
