"""The line in front of the engines: calls get seats in the order they came, and give them back."""

import asyncio
import heapq
import itertools
from collections.abc import Sequence

from gyre.proxy.routing.routes import Routes
from gyre.proxy.routing.seats import EngineSlots, RoutedCall, choose

Waiter = tuple[int, int, RoutedCall, "asyncio.Future[None]"]


class WaitingQueue:
    """Calls without a seat; a call that comes back stands before those that came after it."""

    def __init__(self, rooms: Sequence[EngineSlots], routes: Routes | None = None) -> None:
        self._rooms = rooms
        self._routes = routes
        self._waiters: list[Waiter] = []
        self._ticks = itertools.count()
        self._emptied = {room.name: asyncio.Event() for room in rooms}

    def __len__(self) -> int:
        return len(self._waiters)

    def seat_at_once(self, call: RoutedCall) -> bool:
        """Whether the call got a seat without waiting; nobody is overtaken."""
        if self._waiters:
            return False
        room = self._room_for(call)
        if room is not None:
            room.assign(call)
        return room is not None

    async def wait(self, call: RoutedCall, most_s: float) -> None:
        """Returns when the call has a seat, or most_s have passed, or both in one moment."""
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
                # The caller is cancelled, and a seat given in the same moment must not be lost.
                self.release(call)

    async def wait_empty(self, room: EngineSlots, *, although_open: bool = False) -> None:
        """Returns once the room has no calls, or takes new ones and that is not what was asked."""
        while room.calls and (although_open or room.draining):
            self._emptied[room.name].clear()
            await self._emptied[room.name].wait()

    def reopen(self, room: EngineSlots) -> None:
        """The room takes calls again."""
        room.draining = False
        self._emptied[room.name].set()
        self.fill()

    def release(self, call: RoutedCall) -> None:
        """Gives the seat of a call back; nothing happens when it has none."""
        room = call.room
        if room is not None:
            room.leave(call)
            if not room.calls:
                self._emptied[room.name].set()
            self.fill()

    def fill(self) -> None:
        """Seats waiting calls, oldest first, as long as there is room for them."""
        passed: list[Waiter] = []
        while self._waiters and any(room.has_room for room in self._rooms):
            waiter = heapq.heappop(self._waiters)
            _, _, call, given = waiter
            if given.done():
                continue
            room = self._room_for(call)
            if room is None:
                passed.append(waiter)
            else:
                room.assign(call)
                given.set_result(None)
        for waiter in passed:
            heapq.heappush(self._waiters, waiter)

    def _room_for(self, call: RoutedCall) -> EngineSlots | None:
        if self._routes is None:
            return choose(
                self._rooms, last=call.last, failed_at=call.failed_at, refused_by=call.refused_by
            )
        routed = self._routes.engine(call.execution)
        return next((one for one in self._rooms if one.name == routed and one.has_room), None)
