"""Finds every call an engine: calls wait, are sent, move, and continue elsewhere.

Rule 1: a token that was sampled is kept; a call ends once, with every token once (T07).
Rule 2: nothing polls; a call waits for a slot, a drain for its last call, a probe for its pause.
Rule 3: a stream that makes progress is never cut, except to drain its engine or to move it.
"""

import asyncio
import itertools
import random
import time
import uuid
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from typing import Any, Self

from gyre.aio import BackgroundTasks, WaitTimer
from gyre.config.sections import RouterConfig
from gyre.proxy.metrics import RouterCounts
from gyre.proxy.routing.call_output import CallOutput
from gyre.proxy.routing.circuit_breaker import CircuitBreaker
from gyre.proxy.routing.engine_pool import (
    ORDERED,
    Cut,
    EngineSlots,
    EngineStatus,
    EngineStream,
    KvHandover,
    RoutedCall,
    Routes,
    WaitingQueue,
)
from gyre.types.errors import (
    ConfigError,
    EngineDraining,
    EngineError,
    InternalError,
    NotFound,
    Unavailable,
)
from gyre.types.ids import EngineName
from gyre.types.protocols import Engine
from gyre.types.sampling import Chunk, GenerateRequest, Output, PinnedKv, SamplingParams


class HeldTimer:
    """Seconds by execution in which one of its calls waited, or several did."""

    def __init__(self, clock: Callable[[], float], counts: RouterCounts) -> None:
        self._clock = clock
        self._counts = counts
        self._by_execution: dict[str, WaitTimer] = {}

    @contextmanager
    def holding(self, call: RoutedCall) -> Iterator[None]:
        """The call has no engine while this lasts."""
        began = self._clock()
        waits = self._by_execution.setdefault(call.execution, WaitTimer())
        waits.begin(began)
        try:
            yield
        finally:
            now = self._clock()
            waits.end(now)
            call.held_s += now - began
            self._counts.held_s += now - began

    def of(self, execution: str) -> float:
        waits = self._by_execution.get(execution)
        return 0.0 if waits is None else waits.total_s(self._clock())

    def forget(self, execution: str) -> None:
        """It is over; the time of calls that still wait is not counted."""
        self._by_execution.pop(execution, None)


MOST_REMEMBERED = 65_536
"""Executions whose last engine is remembered; the oldest is forgotten beyond."""


class Router:
    """Finds every call an engine: waits, retries, moves it; its probes end with its context."""

    def __init__(
        self,
        engines: Sequence[Engine],
        settings: RouterConfig,
        *,
        routes: Routes | None = None,
        clock: Callable[[], float] = time.monotonic,
        jitter: random.Random | None = None,
    ) -> None:
        """With routes, every execution has the engine they say, and waits while they say none."""
        self._settings = settings
        self._routes = routes
        self._clock = clock
        self._jitter = random.Random() if jitter is None else jitter
        self._engines = {engine.name: engine for engine in engines}
        if len(self._engines) != len(engines):
            raise ConfigError(f"engines: a name occurs twice in {[e.name for e in engines]}")
        self._slots = {
            name: EngineSlots(
                name=name,
                capacity=settings.capacity,
                breaker=CircuitBreaker(break_after=settings.break_after, probe_s=settings.probe_s),
            )
            for name in self._engines
        }
        self._line = WaitingQueue(list(self._slots.values()), routes)
        self._streams: dict[RoutedCall, EngineStream] = {}
        self._orders = itertools.count(1)
        self._homes: dict[str, EngineName] = {}
        self._inspected: set[EngineName] = set()
        # Ids of asks have one length, so that none is the beginning of another.
        self._prefix = uuid.uuid4().hex[:12]
        self._chores = BackgroundTasks()
        self.counts = RouterCounts()
        self.held = HeldTimer(clock, self.counts)
        self._carrying = KvHandover(self._engines, self.counts, kv_s=settings.kv_s)

    async def __aenter__(self) -> Self:
        await self._chores.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self._chores.__aexit__(*error)

    @property
    def waiting(self) -> int:
        """Calls without a slot."""
        return len(self._line)

    @property
    def takes_routes(self) -> bool:
        """Orders say which engine an execution has."""
        return self._routes is not None

    @property
    def routes_version(self) -> int:
        """The version of the newest route table."""
        return 0 if self._routes is None else self._routes.version

    def engines(self) -> list[EngineStatus]:
        """Every engine as it stands, in the order listed."""
        return [slots.status() for slots in self._slots.values()]

    async def accept(self, execution: str) -> RoutedCall:
        """Gives the call a slot at an engine; raises Unavailable after hold_s without one.

        The slot is kept until `generate` ends or `release` is called.
        """
        if not self._chores.is_open:
            raise Unavailable("the proxy is not running")
        call = RoutedCall(
            execution=execution,
            order=next(self._orders),
            progress_at=self._clock(),
            last=self._homes.get(execution),
        )
        self.counts.calls += 1
        await self._assigned(call)
        return call

    def release(self, call: RoutedCall) -> None:
        """Frees the slot of a call; nothing happens when it has none."""
        self._line.release(call)

    async def generate(
        self, call: RoutedCall, *, input_ids: bytes, sampling: SamplingParams
    ) -> Output:
        """The whole output of the call, from one engine or several.

        Cancelling aborts at the engine; `call.output_so_far()` then has what was sampled.
        """
        call.sampled = CallOutput(sampling)
        call.progress_at = self._clock()
        fruitless = 0
        try:
            while call.sampled.finish is None:
                await self._assigned(call)
                known = len(call.sampled.ids)
                pauses = await self._attempt(call, input_ids)
                fruitless = 0 if len(call.sampled.ids) > known else fruitless + 1
                if pauses and call.sampled.finish is None:
                    await self._back_off(call, fruitless)
        finally:
            self.release(call)
            self._chores.start(self._carrying.drop(call))
        return call.output_so_far()

    async def drain(self, name: EngineName) -> None:
        """Gives the engine no more calls, and moves those it has; returns when it has none."""
        slots = self._named(name)
        slots.draining = True
        for call in list(slots.calls):
            self._send_away(call, "drain")
        await self._line.wait_empty(slots)

    def assign(self, version: int, changes: Mapping[str, EngineName | None]) -> int:
        """Gives executions other engines, and moves their calls there; how many calls moved.

        None takes an execution's engine away. Nothing is changed by an order that is refused.
        """
        if self._routes is None:
            raise NotFound("this proxy chooses engines itself and takes no routes")
        for name in changes.values():
            if name is not None:
                self._named(name)
        if not self._routes.put(version, changes):
            return 0
        moved = self._routes.misplaced(self._slots.values())
        for call in moved:
            self._send_away(call, "move")
        self._line.fill()
        return len(moved)

    async def wait_drained(self, name: EngineName) -> None:
        """Returns when the engine has no call, and none that left needs its cache (SPEC 2.3)."""
        await self._line.wait_empty(self._named(name), although_open=True)
        await self._carrying.wait_free(name)

    def resume(self, name: EngineName) -> None:
        """Gives the engine calls again."""
        self._line.reopen(self._named(name))

    def set_address(self, engine: Engine) -> None:
        """Sets the new address of a restarted engine; what it had in flight ended with it."""
        self._named(engine.name)
        self._engines[engine.name] = engine

    def _send_away(self, call: RoutedCall, reason: Cut) -> None:
        """Its blocks are pinned before the cut, where they can follow it."""
        slots = call.slots
        if slots is None or call not in self._streams:
            self.release(call)
        elif reason == "move" and not call.moving and self._carrying.can(slots.name):
            call.moving = True
            self._chores.start(self._move(call, slots))
        elif not call.moving:
            self._cut(call, reason)

    async def _move(self, call: RoutedCall, slots: EngineSlots) -> None:
        await self._carrying.pin(call, slots.name)
        call.moving = False
        if call in self._streams and call.slots is slots:
            self._cut(call, "move")
        else:
            # It has ended meanwhile, or is on its way already.
            await self._carrying.drop(call)

    def _named(self, name: EngineName) -> EngineSlots:
        if name not in self._slots:
            raise NotFound(f"no engine {name!r}; known are {', '.join(self._slots)}")
        return self._slots[name]

    async def _assigned(self, call: RoutedCall) -> None:
        """Waits for a slot, behind the calls that came earlier."""
        if call.slots is None:
            self._line.assign_at_once(call)
        with self.held.holding(call):
            while call.slots is None:
                left_s = call.progress_at + self._settings.hold_s - self._clock()
                if left_s <= 0:
                    self.counts.unavailable += 1
                    raise Unavailable(f"no engine within {self._settings.hold_s:g} s; try again")
                await self._line.wait(call, left_s)
        self._homes.pop(call.execution, None)
        self._homes[call.execution] = call.slots.name
        if len(self._homes) > MOST_REMEMBERED:
            del self._homes[next(iter(self._homes))]

    async def _back_off(self, call: RoutedCall, fruitless: int) -> None:
        longest = self._settings.retry_first_s * 2 ** min(max(fruitless - 1, 0), 30)
        longest = min(longest, self._settings.retry_most_s)
        with self.held.holding(call):
            await asyncio.sleep(longest * self._jitter.uniform(0.5, 1.0))

    async def _attempt(self, call: RoutedCall, input_ids: bytes) -> bool:
        """One engine is asked for the rest; whether to back off before the next is asked."""
        slots = call.slots
        if slots is None:
            raise InternalError("a call without a seat asks an engine")
        call.attempts += 1
        self.counts.attempts += 1
        self.counts.reroutes += call.attempts > 1
        held, began = None, self._clock()
        try:
            held = await self._carried(call, slots, input_ids)
            began = self._clock()
            await self._stream(call, slots, input_ids)
            return self._ended(call, slots)
        except EngineError as error:
            return self._judge(call, slots, error)
        finally:
            call.engine_s += self._clock() - began
            self.release(call)
            if held is not None:
                self._chores.start(self._carrying.let_go(slots.name, held))

    async def _carried(
        self, call: RoutedCall, slots: EngineSlots, input_ids: bytes
    ) -> PinnedKv | None:
        """Blocks that followed a call to the engine it was sent to."""
        if call.cut != "move":
            return None
        with self.held.holding(call):
            held = await self._carrying.carry(call, slots.name)
        tokens = len(input_ids) // 4 + len(call.sampled.ids)
        self.counts.again_tokens += tokens - (0 if held is None else held.tokens)
        return held

    async def _stream(self, call: RoutedCall, slots: EngineSlots, input_ids: bytes) -> None:
        """Takes chunks until one is the last, or the stream is cut from this side."""
        call.ask_id = f"{self._prefix}-{call.order:010x}-{call.attempts:06x}"
        ask = GenerateRequest(
            id=call.ask_id,
            input_ids=input_ids + array("i", call.sampled.ids).tobytes(),
            sampling=call.sampled.rest,
            execution=call.execution,
        )
        loop = asyncio.get_running_loop()
        call.heard_at = self._clock()
        call.cut = None
        try:
            async with asyncio.timeout(None) as scope:
                watch = loop.call_later(self._settings.idle_s, self._look, call, slots)
                self._streams[call] = EngineStream(scope=scope, watch=watch)
                async with aclosing(self._engines[slots.name].generate(ask)) as chunks:
                    async for chunk in chunks:
                        self._take(call, slots, chunk)
                        if chunk.finish is not None:
                            break
        except TimeoutError:
            if call.cut is None:
                raise
        finally:
            self._streams.pop(call).watch.cancel()

    def _take(self, call: RoutedCall, slots: EngineSlots, chunk: Chunk) -> None:
        call.heard_at = self._clock()
        call.sampled.take(slots.name, chunk)
        if chunk.ids:
            call.progress_at = call.heard_at
            if slots.sampled(len(chunk.ids)):
                self._line.fill()

    def _ended(self, call: RoutedCall, slots: EngineSlots) -> bool:
        """What a stream without an error came to."""
        if call.sampled.finish is not None:
            slots.breaker.finished()
            return False
        if call.cut is None:
            return self._failed(call, slots, "abort")
        call.failed_at = slots.name
        self.counts.midway += call.cut == "move" and bool(call.sampled.ids)
        if call.cut not in ORDERED:
            self._count(call.cut)
        return False

    def _judge(self, call: RoutedCall, slots: EngineSlots, error: EngineError) -> bool:
        """What an engine's failure means for the call; raises it when no other engine may help."""
        if call.cut is not None:
            return self._ended(call, slots)
        if isinstance(error, EngineDraining):
            call.failed_at = slots.name
            return True
        if error.retryable:
            refused = isinstance(error.__cause__, ConnectionRefusedError)
            return self._failed(call, slots, "refused" if refused else "error", at_once=refused)
        self._count("bad request")
        call.refused_by.add(slots.name)
        others = (other for other in self._slots.values() if other.name not in call.refused_by)
        if self._routes is not None or not any(other.is_open for other in others):
            raise error
        return False

    def _failed(
        self, call: RoutedCall, slots: EngineSlots, kind: str, *, at_once: bool = False
    ) -> bool:
        self._count(kind)
        call.failed_at = slots.name
        self._distrust(slots, at_once=at_once)
        return True

    def _count(self, kind: str) -> None:
        self.counts.failures[kind] = self.counts.failures.get(kind, 0) + 1

    def _distrust(self, slots: EngineSlots, *, at_once: bool) -> None:
        if slots.breaker.failed(at_once=at_once):
            self.counts.breaker_opens += 1
            self._chores.start(self._probe(slots))

    def _cut(self, call: RoutedCall, reason: Cut) -> None:
        """Ends the call's stream from this side; the call itself goes on."""
        if call.cut is None:
            call.cut = reason
            self._streams[call].scope.reschedule(asyncio.get_running_loop().time())

    def _look(self, call: RoutedCall, slots: EngineSlots) -> None:
        """After a silence the engine is asked how it is; after a very long one the call moves.

        A healthy engine may have lost the call: half of hold_s is left to find another.
        """
        idle_s = self._settings.idle_s
        silent_s = self._clock() - call.heard_at
        if silent_s >= max(self._settings.hold_s / 2, idle_s):
            self._cut(call, "stall")
            self._distrust(slots, at_once=False)
            return
        if silent_s >= idle_s and slots.name not in self._inspected:
            self._inspected.add(slots.name)
            self._chores.start(self._inspect(slots))
        next_s = idle_s - silent_s if silent_s < idle_s else idle_s
        loop = asyncio.get_running_loop()
        self._streams[call].watch = loop.call_later(next_s, self._look, call, slots)

    async def _inspect(self, slots: EngineSlots) -> None:
        """Moves the silent calls of an engine whose health does not answer either."""
        try:
            healthy = await self._is_healthy(slots)
        finally:
            self._inspected.discard(slots.name)
        quiet_since = self._clock() - self._settings.idle_s
        silent = [
            call for call in slots.calls if call in self._streams and call.heard_at <= quiet_since
        ]
        if healthy or not silent:
            return
        for call in silent:
            self._cut(call, "hang")
        self._distrust(slots, at_once=True)

    async def _probe(self, slots: EngineSlots) -> None:
        """Asks a broken engine from time to time, until it may be tried again."""
        while not slots.breaker.admits:
            await asyncio.sleep(slots.breaker.pause_s)
            slots.breaker.probed(await self._is_healthy(slots))
        self._line.fill()

    async def _is_healthy(self, slots: EngineSlots) -> bool:
        # Half of idle_s, so that a hang is known one and a half idle_s after the last token.
        try:
            async with asyncio.timeout(self._settings.idle_s / 2):
                return (await self._engines[slots.name].health()).ready
        except (EngineError, TimeoutError):
            return False
