"""Which engine takes the next call: the one it had, else the emptiest that is ready."""

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Literal

from gyre.proxy.routing.call_output import CallOutput
from gyre.proxy.routing.circuit_breaker import BreakerState, CircuitBreaker
from gyre.types.ids import EngineName
from gyre.types.sampling import Output, PinnedKv, SamplingParams

Cut = Literal["drain", "move", "hang", "stall"]
"""Why a stream was ended from this side: the engine leaves, the call is sent elsewhere, the engine
is dead, or it is silent for too long."""
ORDERED: frozenset[Cut] = frozenset(("drain", "move"))
"""Cuts that are nobody's failure."""


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
    """Seconds without an engine, which nobody is charged for (SPEC 6.1)."""
    progress_at: float
    """When it was accepted or last got a token."""
    heard_at: float = 0.0
    """When its engine last said anything."""
    room: "EngineSlots | None" = None
    """Where it is seated."""
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
    """What holds on to an engine's answer while it comes."""

    scope: asyncio.Timeout
    watch: asyncio.TimerHandle


@dataclass(frozen=True, slots=True, kw_only=True)
class CallPin:
    """Cached blocks of a call, and the engine that keeps them."""

    engine: EngineName
    held: PinnedKv


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStatus:
    """One engine as the router sees it."""

    name: EngineName
    state: str
    """One of "ready", "on trial", "broken" and "draining"."""
    in_flight: int
    capacity: int
    num_tokens: int
    """That it has sampled since the router began."""


@dataclass(eq=False, slots=True, kw_only=True)
class EngineSlots:
    """One engine's seats."""

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
    def has_room(self) -> bool:
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
        call.room = self
        call.last = self.name

    def sampled(self, num_tokens: int) -> bool:
        """Whether that ends the engine's trial."""
        self.num_tokens += num_tokens
        return self.breaker.sampled()

    def leave(self, call: RoutedCall) -> None:
        self.calls.discard(call)
        self.breaker.returned()
        call.room = None


def choose(
    rooms: Sequence[EngineSlots],
    *,
    last: EngineName | None = None,
    failed_at: EngineName | None = None,
    refused_by: Collection[EngineName] = (),
) -> EngineSlots | None:
    """The room for one call; ties go to the engine listed first."""
    free = [room for room in rooms if room.has_room and room.name not in refused_by]
    others = [room for room in free if room.name != failed_at]
    for room in others:
        if room.name == last:
            return room
    return min(others or free, key=lambda room: len(room.calls), default=None)
