"""The proxy as an ASGI application: paths, keys, limits and errors around each call."""

import re
import time
from collections.abc import Iterator

import msgspec

from gyre.config.sections import LimitsConfig
from gyre.harnesses.roles import classify
from gyre.net.http_server import ClientGone, Exchange, Receive, Scope, Send
from gyre.proxy.admin_api import PREFIX, AdminApi
from gyre.proxy.call_handler import CallContext, answer, as_request_error
from gyre.proxy.dialects.anthropic import AnthropicMessages
from gyre.proxy.dialects.base import Dialect, ParsedRequest, identifying
from gyre.proxy.dialects.openai_chat import OpenAIChat
from gyre.proxy.dialects.openai_responses import OpenAIResponses
from gyre.proxy.executions import ExecutionRegistry
from gyre.proxy.metrics import labels, text
from gyre.types.errors import EngineError, NotFound, Overloaded, RequestError, TooLarge

MESSAGES, CHAT, RESPONSES = AnthropicMessages(), OpenAIChat(), OpenAIResponses()
ROUTES: dict[str, Dialect] = {
    "/v1/messages": MESSAGES,
    "/v1/chat/completions": CHAT,
    "/chat/completions": CHAT,
    "/v1/responses": RESPONSES,
    "/responses": RESPONSES,
}
COUNT = "/v1/messages/count_tokens"
_EXECUTION = re.compile(r"/exec/([^/]+)(/.*)")
_PROMETHEUS = b"text/plain; version=0.0.4; charset=utf-8"


class Proxy:
    """Answers agents' requests: finds dialect and execution, and has the policy reply to each."""

    def __init__(
        self,
        executions: ExecutionRegistry,
        context: CallContext,
        admin: AdminApi,
        *,
        model: str,
        limits: LimitsConfig,
    ) -> None:
        self._executions = executions
        self._context = context
        self._admin = admin
        self._model = model
        self._limits = limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        exchange = Exchange(scope, receive, send)
        claimed, path = None, exchange.path
        if found := _EXECUTION.fullmatch(path):
            claimed, path = found.groups()
        dialect = ROUTES.get(path)
        try:
            if dialect is not None and exchange.method == "POST":
                await self._call(exchange, dialect, claimed)
            elif path == COUNT and exchange.method == "POST":
                await self._count(exchange, claimed)
            else:
                await self._other(exchange, path)
        except ClientGone:
            pass
        except EngineError as error:
            await self._refuse(exchange, dialect or MESSAGES, as_request_error(error))
        except RequestError as error:
            await self._refuse(exchange, dialect or MESSAGES, error)
        name = dialect.name if dialect is not None else "other"
        self._context.metrics.requests[name, exchange.status or 499] += 1

    async def _call(self, exchange: Exchange, dialect: Dialect, claimed: str | None) -> None:
        execution = self._executions.of_key(_key(exchange), claimed)
        body = await exchange.body(most_bytes=self._limits.body_bytes, within_s=self._limits.body_s)
        wire = dialect.split(body)
        self._refuse_long(dialect, wire)
        if not 1 <= wire.choices <= self._limits.calls_per_execution:
            raise RequestError(f"n: expected 1 to {self._limits.calls_per_execution}")
        execution.admit(time.monotonic(), wire.choices)
        evidence = dialect.evidence(wire, exchange.headers)
        classified = classify(evidence, execution.session.subagents)
        headers = identifying(evidence.headers)
        pending = execution.session.position(dialect, wire, classified, headers)
        if len(pending.preface.tools) > self._limits.tools:
            raise TooLarge(f"tools: expected at most {self._limits.tools}")
        execution.in_flight += wire.choices
        try:
            await answer(self._context, exchange, execution, dialect, wire, pending)
        finally:
            execution.in_flight -= wire.choices

    async def _count(self, exchange: Exchange, claimed: str | None) -> None:
        execution = self._executions.of_key(_key(exchange), claimed)
        body = await exchange.body(most_bytes=self._limits.body_bytes, within_s=self._limits.body_s)
        wire = MESSAGES.split(body)
        self._refuse_long(MESSAGES, wire)
        tokens = execution.session.count(MESSAGES, wire)
        self._context.metrics.counted += 1
        await exchange.answer(200, msgspec.json.encode({"input_tokens": tokens}))

    def _refuse_long(self, dialect: Dialect, wire: ParsedRequest) -> None:
        if len(wire.messages) > self._limits.messages:
            raise TooLarge(f"expected at most {self._limits.messages}", where=dialect.conversation)

    async def _other(self, exchange: Exchange, path: str) -> None:
        if path.startswith(PREFIX):
            await self._admin.answer(exchange)
        elif path == "/metrics" and exchange.method == "GET":
            await exchange.answer(200, text(self._context.metrics, self._gauges()), _PROMETHEUS)
        elif path in ("/api/hello", "/health", "/") and exchange.method in ("GET", "HEAD"):
            await exchange.answer(200, b"" if exchange.method == "HEAD" else b'{"ok":true}')
        elif path == "/v1/models" and exchange.method == "GET":
            listed = {"object": "list", "data": [{"id": self._model, "object": "model"}]}
            await exchange.answer(200, msgspec.json.encode(listed))
        else:
            raise NotFound(f"{exchange.method} {exchange.path}: no such path")

    async def _refuse(self, exchange: Exchange, dialect: Dialect, error: RequestError) -> None:
        if exchange.status is not None:
            # The stream has begun: its own kind of error event is all that can follow.
            await exchange.write(dialect.error_event(error), last=True)
            return
        # 529 is Anthropic's own number; other clients retry on 503.
        status = 503 if error.status == 529 and dialect is not MESSAGES else error.status
        extra = {}
        if isinstance(error, Overloaded):
            extra[b"retry-after"] = str(max(1, round(error.retry_after_s))).encode()
        await exchange.answer(status, dialect.error(error), extra=extra)

    def _gauges(self) -> Iterator[tuple[str, str, str, float]]:
        loaded = self._executions.loaded
        yield "gyre_executions", "Executions in memory.", "", len(loaded)
        in_flight = sum(execution.in_flight for execution in loaded)
        yield "gyre_calls_in_flight", "Calls being answered.", "", in_flight
        trees = [execution.session.tree for execution in loaded]
        yield "gyre_tree_tokens", "Tokens stored.", "", sum(tree.num_tokens for tree in trees)
        yield "gyre_tree_bytes", "Memory of trees.", "", sum(tree.nbytes for tree in trees)
        commit = self._context.commit
        yield "gyre_fdatasync_total", "Syncs that made records durable.", "", commit.num_syncs
        yield "gyre_durable_waits_total", "Calls that waited for it.", "", commit.num_waits
        engines = self._context.router.engines()
        for engine in engines:
            label = labels(engine=engine.name)
            yield "gyre_engine_in_flight", "Calls on an engine.", label, engine.in_flight
        for engine in engines:
            label = labels(engine=engine.name, state=engine.state)
            yield "gyre_engine_state", "What the router thinks of an engine.", label, 1
        counts = self._context.router.counts
        yield "gyre_attempts_total", "Asks sent to engines.", "", counts.attempts
        yield "gyre_reroutes_total", "Asks that continued a call.", "", counts.reroutes
        yield "gyre_breaker_opens_total", "Engines given up.", "", counts.breaker_opens
        yield "gyre_unavailable_total", "Calls no engine came for.", "", counts.unavailable
        yield "gyre_calls_waiting", "Calls without an engine.", "", self._context.router.waiting
        yield "gyre_moved_midway_total", "Calls moved with tokens sampled.", "", counts.midway
        yield "gyre_hand_overs_total", "Calls whose cache followed them.", "", counts.hand_overs
        lost = counts.lost_hand_overs
        yield "gyre_hand_overs_lost_total", "Calls whose cache should have.", "", lost
        yield "gyre_carried_bytes_total", "Cache that followed calls.", "", counts.carried_bytes
        yield "gyre_carried_tokens_total", "The same in tokens.", "", counts.carried_tokens
        yield "gyre_again_tokens_total", "Tokens moved without cache.", "", counts.again_tokens
        yield "gyre_held_seconds_total", "Time calls had no engine.", "", counts.held_s
        for kind, number in sorted(counts.failures.items()):
            yield "gyre_failures_total", "Asks that failed.", labels(kind=kind), number


def _key(exchange: Exchange) -> str | None:
    bearer = exchange.headers.get("authorization", "")
    if bearer.startswith("Bearer "):
        return bearer.removeprefix("Bearer ").strip()
    return exchange.headers.get("x-api-key")
