"""Moves cached blocks with the calls that move; what does not come in time is computed again.

Rule 1: blocks are pinned before the call is cancelled, and let go after the destination has them
or kv_s have passed (SPEC 2.3).
"""

import asyncio
from collections import Counter
from collections.abc import Mapping

from gyre.proxy.metrics import RouterCounts
from gyre.proxy.routing.engine_pool import CallPin, RoutedCall
from gyre.types.errors import EngineError
from gyre.types.ids import EngineName
from gyre.types.protocols import Engine, KvMovable
from gyre.types.sampling import PinnedKv


class KvHandover:
    """Moves a call's cached blocks from one engine of a proxy to another."""

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
