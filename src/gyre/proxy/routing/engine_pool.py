"""Engine slots, waiting queue, route table, call state, and the hand-over of cached blocks."""

import asyncio
import heapq
import itertools
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from gyre.proxy.metrics import RouterCounts
from gyre.proxy.routing.call_output import CallOutput
from gyre.proxy.routing.circuit_breaker import BreakerState, CircuitBreaker
from gyre.types.errors import EngineError, RequestError
from gyre.types.ids import EngineName
from gyre.types.protocols import Engine, KvMovable
from gyre.types.sampling import Output, PinnedKv, SamplingParams

Cut = Literal["drain", "move", "hang", "stall"]
"""Why a stream was ended from this side: the engine leaves, the call is sent elsewhere, the engine
is dead, or it is silent for too long."""
ORDERED: frozenset[Cut] = frozenset(("drain", "move"))
"""Cuts that are no failure of the engine."""


@dataclass(eq=False, slots=True, kw_only=True)
class RoutedCall:
    """One call on its way through engines; what was sampled can be read at any time."""

    execution: str
    order: int
    """Calls are served in the order they came, also when they come back."""
    sampled: CallOutput = field(default_factory=lambda: CallOutput(SamplingParams()))
    attempts: int = 0
    engine_s: float = 0.0
    held_s: float = 0.0
    """Seconds without an engine, which no deadline counts (SPEC 6.1)."""
    progress_at: float
    """When it was accepted or last got a token."""
    heard_at: float = 0.0
    """When its engine last said anything."""
    slots: "EngineSlots | None" = None
    """The engine at which it has a slot."""
    last: EngineName | None
    """The engine it, or its execution, had before."""
    failed_at: EngineName | None = None
    """The engine that failed it last, taken again only if there is no other."""
    refused_by: set[EngineName] = field(default_factory=set)
    """Engines that called it a bad request."""
    cut: Cut | None = None
    """Set when its present stream was ended from this side."""
    ask_id: str = ""
    """Of its last ask, at the engine."""
    moving: bool = False
    """Its blocks are being pinned, and then its stream is cut."""
    is_unpinned: bool = False
    """Its blocks could not be pinned."""
    pinned: "CallPin | None" = None
    """Blocks that the engine it left keeps for it."""

    def output_so_far(self) -> Output:
        """What was sampled; its finish is "abort" as long as there was more to come (T08)."""
        return self.sampled.output(engine_s=self.engine_s, attempts=self.attempts)


@dataclass(slots=True, kw_only=True)
class EngineStream:
    """The time-out and the silence timer of one call's stream from an engine."""

    scope: asyncio.Timeout
    watch: asyncio.TimerHandle


@dataclass(frozen=True, slots=True, kw_only=True)
class CallPin:
    """Cached blocks of a call, and the engine that keeps them."""

    engine: EngineName
    held: PinnedKv


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStatus:
    """One engine's state and calls, as the proxy's status reports them."""

    name: EngineName
    state: str
    """One of "ready", "on trial", "broken" and "draining"."""
    in_flight: int
    capacity: int
    num_tokens: int
    """That it has sampled since the router began."""


@dataclass(eq=False, slots=True, kw_only=True)
class EngineSlots:
    """One engine's slots, and the calls that hold them."""

    name: EngineName
    capacity: int
    breaker: CircuitBreaker
    calls: set[RoutedCall] = field(default_factory=set)
    draining: bool = False
    num_tokens: int = 0

    @property
    def is_open(self) -> bool:
        """Whether it takes calls, now or once one leaves."""
        return not self.draining and self.breaker.trust is not BreakerState.OPEN

    @property
    def has_free_slot(self) -> bool:
        return not self.draining and self.breaker.admits and len(self.calls) < self.capacity

    def status(self) -> EngineStatus:
        return EngineStatus(
            name=self.name,
            state="draining" if self.draining else self.breaker.trust.value,
            in_flight=len(self.calls),
            capacity=self.capacity,
            num_tokens=self.num_tokens,
        )

    def assign(self, call: RoutedCall) -> None:
        self.calls.add(call)
        self.breaker.given()
        call.slots = self
        call.last = self.name

    def sampled(self, num_tokens: int) -> bool:
        """Whether that ends the engine's trial."""
        self.num_tokens += num_tokens
        return self.breaker.sampled()

    def leave(self, call: RoutedCall) -> None:
        self.calls.discard(call)
        self.breaker.returned()
        call.slots = None


def choose(
    engine_slots: Sequence[EngineSlots],
    *,
    last: EngineName | None = None,
    failed_at: EngineName | None = None,
    refused_by: Collection[EngineName] = (),
) -> EngineSlots | None:
    """The slots for one call; ties go to the engine listed first."""
    free = [slots for slots in engine_slots if slots.has_free_slot and slots.name not in refused_by]
    others = [slots for slots in free if slots.name != failed_at]
    for slots in others:
        if slots.name == last:
            return slots
    return min(others or free, key=lambda slots: len(slots.calls), default=None)


class Routes:
    """Which engine serves which execution, with a version, so that a late table is ignored."""

    def __init__(self) -> None:
        self.version = 0
        self._engines: dict[str, EngineName] = {}

    def __len__(self) -> int:
        return len(self._engines)

    def engine(self, execution: str) -> EngineName | None:
        """None: its calls wait."""
        return self._engines.get(execution)

    def put(self, version: int, changes: Mapping[str, EngineName | None]) -> bool:
        """Changes routes, None for those that end; whether the version was new.

        The order that was carried out last may come again; an older one is refused.
        """
        if version < self.version:
            found = f"expected {self.version} or later, found {version}"
            raise RequestError(f"routes: {found}: a newer order was carried out", where="version")
        if version == self.version:
            return False
        self.version = version
        for execution, engine in changes.items():
            if engine is None:
                self._engines.pop(execution, None)
            else:
                self._engines[execution] = engine
        return True

    def misplaced(self, engine_slots: Iterable[EngineSlots]) -> list[RoutedCall]:
        """Calls that are not where their execution belongs."""
        return [
            call
            for slots in engine_slots
            for call in slots.calls
            if self.engine(call.execution) != slots.name
        ]


Waiter = tuple[int, int, RoutedCall, "asyncio.Future[None]"]


class WaitingQueue:
    """Calls without a slot, in order of arrival; a call that comes back keeps its place."""

    def __init__(self, engine_slots: Sequence[EngineSlots], routes: Routes | None = None) -> None:
        self._slots = engine_slots
        self._routes = routes
        self._waiters: list[Waiter] = []
        self._ticks = itertools.count()
        self._emptied = {slots.name: asyncio.Event() for slots in engine_slots}

    def __len__(self) -> int:
        return len(self._waiters)

    def assign_at_once(self, call: RoutedCall) -> bool:
        """Whether the call got a slot without waiting; no waiting call is overtaken."""
        if self._waiters:
            return False
        slots = self._slots_for(call)
        if slots is not None:
            slots.assign(call)
        return slots is not None

    async def wait(self, call: RoutedCall, most_s: float) -> None:
        """Returns when the call has a slot, or most_s have passed, or both in one moment."""
        given: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        # The tick keeps two waits of one call apart, as calls have no order of their own.
        waiter = (call.order, next(self._ticks), call, given)
        heapq.heappush(self._waiters, waiter)
        self.fill()
        stays = False
        try:
            async with asyncio.timeout(most_s):
                await given
            stays = True
        except TimeoutError:
            stays = True
        finally:
            if waiter in self._waiters:
                self._waiters.remove(waiter)
                heapq.heapify(self._waiters)
            if not stays:
                # The caller is cancelled, and a slot given in the same moment must not be lost.
                self.release(call)

    async def wait_empty(self, slots: EngineSlots, *, although_open: bool = False) -> None:
        """Returns once the engine has no calls, or takes new ones where it should be drained."""
        while slots.calls and (although_open or slots.draining):
            self._emptied[slots.name].clear()
            await self._emptied[slots.name].wait()

    def reopen(self, slots: EngineSlots) -> None:
        """Gives the engine calls again."""
        slots.draining = False
        self._emptied[slots.name].set()
        self.fill()

    def release(self, call: RoutedCall) -> None:
        """Frees the slot of a call; nothing happens when it has none."""
        slots = call.slots
        if slots is not None:
            slots.leave(call)
            if not slots.calls:
                self._emptied[slots.name].set()
            self.fill()

    def fill(self) -> None:
        """Gives waiting calls slots, oldest first, as long as slots are free."""
        passed: list[Waiter] = []
        while self._waiters and any(slots.has_free_slot for slots in self._slots):
            waiter = heapq.heappop(self._waiters)
            _, _, call, given = waiter
            if given.done():
                continue
            slots = self._slots_for(call)
            if slots is None:
                passed.append(waiter)
            else:
                slots.assign(call)
                given.set_result(None)
        for waiter in passed:
            heapq.heappush(self._waiters, waiter)

    def _slots_for(self, call: RoutedCall) -> EngineSlots | None:
        if self._routes is None:
            return choose(
                self._slots, last=call.last, failed_at=call.failed_at, refused_by=call.refused_by
            )
        routed = self._routes.engine(call.execution)
        return next(
            (slots for slots in self._slots if slots.name == routed and slots.has_free_slot), None
        )


class KvHandover:
    """Moves a call's cached blocks from one engine of a proxy to another.

    Rule 1: blocks are pinned before the call is cancelled, and let go after the destination has
    them or kv_s have passed (SPEC 2.3); what does not come in time is computed again.
    """

    def __init__(
        self, engines: Mapping[EngineName, Engine], counts: RouterCounts, *, kv_s: float
    ) -> None:
        self._engines = engines
        self._counts = counts
        self._kv_s = kv_s
        self._kept: Counter[EngineName] = Counter()
        """Calls by engine that keeps blocks for them, or is asked to."""
        self._let_go = asyncio.Event()

    async def wait_free(self, name: EngineName) -> None:
        """Returns when no call that left needs this engine's cache any more."""
        while self._kept[name]:
            self._let_go.clear()
            await self._let_go.wait()

    def can(self, name: EngineName) -> bool:
        """Whether this engine's blocks can be moved."""
        return self._kv_s > 0 and isinstance(self._engines[name], KvMovable)

    async def pin(self, call: RoutedCall, name: EngineName) -> None:
        """Has the engine keep what it has computed of the call for a while."""
        engine = self._engines[name]
        assert isinstance(engine, KvMovable)
        self._kept[name] += 1
        try:
            async with asyncio.timeout(self._kv_s):
                call.pinned = CallPin(engine=name, held=await engine.pin(call.ask_id))
        except TimeoutError:
            call.is_unpinned = True
        except EngineError:
            # Nothing is lost yet: it may have been the call's last token. Nor is there anything to
            # lose of a call without any, which an engine refuses to pin before it has arrived.
            call.is_unpinned = bool(call.sampled.ids)
        finally:
            if call.pinned is None:
                self._free(name)

    async def carry(self, call: RoutedCall, name: EngineName) -> PinnedKv | None:
        """Copies the blocks to this engine, pins them there, and releases the old pin."""
        pinned, call.pinned = call.pinned, None
        self._counts.lost_hand_overs += call.is_unpinned
        call.is_unpinned = False
        if pinned is None:
            return None
        found = None
        if pinned.engine != name and pinned.held.tokens and self.can(name):
            try:
                found = await self._hand_over(pinned, name, f"{call.ask_id}-{pinned.held.pin}")
            except asyncio.CancelledError:
                # The client is gone, or its execution over: the call's end drops what is kept.
                call.pinned = pinned
                raise
        await self._forget(pinned)
        return found

    async def drop(self, call: RoutedCall) -> None:
        """Releases what an engine keeps for a call that does not need it."""
        pinned, call.pinned = call.pinned, None
        if pinned is not None:
            await self._forget(pinned)

    async def _forget(self, pinned: CallPin) -> None:
        try:
            await self.let_go(pinned.engine, pinned.held)
        finally:
            self._free(pinned.engine)

    async def let_go(self, name: EngineName, held: PinnedKv) -> None:
        engine = self._engines[name]
        assert isinstance(engine, KvMovable)
        try:
            async with asyncio.timeout(self._kv_s):
                await engine.let_go(held.pin)
        except (EngineError, TimeoutError):
            pass  # An engine that cannot hear it has lost the blocks as well.

    def _free(self, name: EngineName) -> None:
        self._kept[name] -= 1
        self._let_go.set()

    async def _hand_over(self, pinned: CallPin, name: EngineName, file: str) -> PinnedKv | None:
        source, destination = self._engines[pinned.engine], self._engines[name]
        assert isinstance(source, KvMovable)
        assert isinstance(destination, KvMovable)
        try:
            async with asyncio.timeout(self._kv_s):
                laid = await source.put(pinned.held.pin, file)
                found = await destination.take(laid.name)
        except (EngineError, TimeoutError):
            self._counts.lost_hand_overs += 1
            return None
        self._counts.hand_overs += 1
        self._counts.carried_bytes += laid.num_bytes
        self._counts.carried_tokens += found.tokens
        return found
