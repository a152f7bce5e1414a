"""One model call from positioned request to recorded, delivered reply."""

import asyncio
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from gyre.net.http_server import EVENTS, ClientGone, Exchange
from gyre.proxy.dialects.base import Dialect, ParsedRequest
from gyre.proxy.executions import ProxiedExecution
from gyre.proxy.metrics import ProxyMetrics
from gyre.proxy.routing.engine_pool import RoutedCall
from gyre.proxy.routing.router import Router
from gyre.proxy.session.session import PositionedRequest
from gyre.storage.wal import WalWriter
from gyre.types.call_records import CallClosed, CallDelivered, CallFailed, CallOpened, CallRecord
from gyre.types.conversation import Reply
from gyre.types.errors import EngineError, GyreError, Unauthorized, Unavailable
from gyre.types.sampling import Output


class RequestGuard:
    """Watches over one request; while armed, an end cancels the work under way."""

    def __init__(self, exchange: Exchange, execution: ProxiedExecution) -> None:
        loop = asyncio.get_running_loop()
        self._execution = execution
        self._task = asyncio.current_task()
        self._armed = False
        self._error: ClientGone | GyreError | None = None
        self._gone = loop.create_task(exchange.gone())
        self._gone.add_done_callback(self._on_gone)
        self._closed: asyncio.Future[None] = loop.create_future()
        self._closed.add_done_callback(self._on_closed)
        execution.in_progress.add(self._closed)

    @property
    def client_is_gone(self) -> bool:
        return self._gone.done()

    @contextmanager
    def armed(self) -> Iterator[None]:
        """Raises ClientGone or Unauthorized out of the block when the request ends meanwhile."""
        if (ended := self._ended()) is not None:
            raise ended
        self._armed = True
        try:
            yield
        except asyncio.CancelledError:
            ended = self._ended()
            if ended is None or self._task is None:
                raise
            self._task.uncancel()
            raise ended from None
        finally:
            self._armed = False

    def stop(self) -> None:
        """Stop watching."""
        self._execution.in_progress.discard(self._closed)
        self._gone.remove_done_callback(self._on_gone)
        self._closed.remove_done_callback(self._on_closed)
        self._gone.cancel()
        self._closed.cancel()

    def _ended(self) -> ClientGone | GyreError | None:
        return self._error

    def _on_gone(self, _: "asyncio.Future[None]") -> None:
        self._end(ClientGone())

    def _on_closed(self, _: "asyncio.Future[None]") -> None:
        self._end(Unauthorized("the execution was closed during the call"))

    def _end(self, error: ClientGone | GyreError) -> None:
        if self._error is None:
            self._error = error
            if self._armed and self._task is not None:
                self._task.cancel()


class Pinger:
    """Writes pings into a stream that waits long; most replies come before the first."""

    def __init__(self, exchange: Exchange, dialect: Dialect, every_s: float) -> None:
        self._exchange = exchange
        self._dialect = dialect
        self._every_s = every_s
        self._task: asyncio.Task[None] | None = None
        self._first = asyncio.get_running_loop().call_later(every_s, self._start)

    def _start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        while True:
            await self._exchange.write(self._dialect.ping)
            await asyncio.sleep(self._every_s)

    def stop(self) -> None:
        """No ping is written after this."""
        self._first.cancel()
        if self._task is not None:
            self._task.cancel()


@dataclass(frozen=True, slots=True, kw_only=True)
class CallContext:
    """What every call needs of the proxy."""

    router: Router
    commit: WalWriter
    metrics: ProxyMetrics
    ping_s: float


async def answer(
    context: CallContext,
    exchange: Exchange,
    execution: ProxiedExecution,
    dialect: Dialect,
    wire: ParsedRequest,
    pending: PositionedRequest,
) -> None:
    """Generate the whole reply, record it, make it durable, send it, and note that it was sent.

    Raises ClientGone when the client is gone; other errors become the client's answer
    upstream of this function as long as exchange.status is None.
    """
    ends = RequestGuard(exchange, execution)
    calls: list[RoutedCall] = []
    opened: list[CallOpened] = []
    try:
        with ends.armed():
            calls.append(await context.router.accept(execution.id))
        started = time.monotonic()
        if not pending.is_probe:
            opened = _open(execution, pending, wire.choices)
        if wire.stream:
            await exchange.start(200, EVENTS, {b"cache-control": b"no-cache"})
        with _pinged(context, exchange, dialect, wire), ends.armed():
            outputs = await _run_all(context.router, execution, pending, calls, wire.choices)
        replies = await _record(context, execution, pending, opened, outputs)
        recorded, opened = opened, []
        context.metrics.call_s.observe(time.monotonic() - started)
        await _send(exchange, dialect, wire, replies)
        _note_delivery(context, execution, recorded, lost=ends.client_is_gone)
    finally:
        ends.stop()
        for call in calls:
            context.router.release(call)
        _abandon(context, execution, pending, opened, calls)


@contextmanager
def _pinged(
    context: CallContext, exchange: Exchange, dialect: Dialect, wire: ParsedRequest
) -> Iterator[None]:
    """A stream that waits gets pings, so that no idle limit cuts it."""
    if not wire.stream:
        yield
        return
    pinger = Pinger(exchange, dialect, context.ping_s)
    try:
        yield
    finally:
        pinger.stop()


async def _run_all(
    router: Router,
    execution: ProxiedExecution,
    pending: PositionedRequest,
    calls: list[RoutedCall],
    choices: int,
) -> list[Output]:
    """One output per choice; only the first holds a slot beforehand, so that none waits for all."""
    ids = pending.prompt.ids.tobytes()

    async def another() -> Output:
        call = await router.accept(execution.id)
        calls.append(call)
        return await router.generate(call, input_ids=ids, sampling=pending.sampling)

    first = router.generate(calls[0], input_ids=ids, sampling=pending.sampling)
    if choices == 1:
        return [await first]
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(first)]
            tasks += [group.create_task(another()) for _ in range(choices - 1)]
    except ExceptionGroup as errors:
        # All are asked for the same, so that the first says what is wrong with it.
        raise errors.exceptions[0] from errors
    return [task.result() for task in tasks]


def _open(
    execution: ProxiedExecution, pending: PositionedRequest, choices: int
) -> list[CallOpened]:
    now = time.time()
    opened = [execution.session.open_call(pending, now) for _ in range(choices)]
    _write(execution, *pending.place.echoed, *opened)
    return opened


async def _record(
    context: CallContext,
    execution: ProxiedExecution,
    pending: PositionedRequest,
    opened: Sequence[CallOpened],
    outputs: Sequence[Output],
) -> list[Reply]:
    """The replies, once the calls they end are on the disk."""
    if pending.is_probe:
        context.metrics.probes += 1
        return [execution.session.probe(pending, output, time.time()) for output in outputs]
    replies = []
    for one, output in zip(opened, outputs, strict=True):
        record, reply = execution.session.close_call(pending, one, output, time.time())
        _write(execution, record)
        _count(context.metrics, pending, record, output)
        replies.append(reply)
    try:
        await context.commit.sync()
    except OSError as error:
        raise _unwritable(execution, error) from error
    return replies


def _write(execution: ProxiedExecution, *records: CallRecord) -> None:
    try:
        execution.write(*records)
    except OSError as error:
        raise _unwritable(execution, error) from error


def _unwritable(execution: ProxiedExecution, error: OSError) -> Unavailable:
    return Unavailable(f"the log of execution {execution.id} cannot be written: {error.strerror}")


def _count(
    metrics: ProxyMetrics, pending: PositionedRequest, record: CallClosed, output: Output
) -> None:
    metrics.calls[record.role, record.harness] += 1
    if record.fork is not None:
        metrics.forks[record.fork] += 1
    metrics.flags.update(record.flags)
    metrics.prompt_tokens += pending.prompt_tokens
    metrics.reused_tokens += pending.cached_tokens
    metrics.output_tokens += len(output.ids)


async def _send(
    exchange: Exchange, dialect: Dialect, wire: ParsedRequest, replies: Sequence[Reply]
) -> None:
    """Returns when the socket has taken every byte (SPEC 4.5), or the client is gone."""
    if wire.stream:
        await exchange.finish(dialect.events(replies, wire))
    else:
        await exchange.answer(200, dialect.body(replies, wire))


def _note_delivery(
    context: CallContext, execution: ProxiedExecution, recorded: Sequence[CallOpened], *, lost: bool
) -> None:
    if lost:
        context.metrics.undelivered += len(recorded)
    elif not execution.sealed:
        # The answer is out and cannot be taken back; without this record its echo tells of it.
        with suppress(OSError):
            execution.write(*(CallDelivered(call=call.call) for call in recorded))


def _abandon(
    context: CallContext,
    execution: ProxiedExecution,
    pending: PositionedRequest,
    opened: Sequence[CallOpened],
    calls: Sequence[RoutedCall],
) -> None:
    """Calls that were opened and will not be answered: what was sampled is kept for audit (T08)."""
    if execution.sealed:
        # Nothing follows a seal; the open record says that the call never ended (M21).
        return
    for index, one in enumerate(opened):
        if one.call in execution.session.tree.calls:
            # Recorded, and then the disk refused to keep it in time.
            continue
        partial = calls[index].output_so_far() if index < len(calls) else None
        now = time.time()
        try:
            if partial is not None and partial.ids:
                record, _ = execution.session.close_call(pending, one, partial, now)
                execution.write(record)
            else:
                execution.write(CallFailed(call=one.call, at=now, reason="nobody left to answer"))
        except OSError:
            # The log already refused; the open record alone says the call never ended (M21).
            return
        context.metrics.undelivered += 1


def as_request_error(error: EngineError) -> Unavailable:
    """An engine's refusal as the client sees it: something to try again."""
    return Unavailable(f"the engine failed: {error}")
