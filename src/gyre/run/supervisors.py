"""Executions under supervisors: started, heard of by their facts, revived, ended with the run.

Rule 1: an execution's facts are taken in order, each once, however often they are posted.
Rule 2: its key is closed and its log final before anybody hears that it is terminated.
"""

import asyncio
import json
import signal
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from gyre.rollout import facts
from gyre.rollout.facts import Entry
from gyre.rollout.order import ORDER_FILE, Order, Told, tell, write_order
from gyre.run.births import Births, Child
from gyre.run.hall import Spawn
from gyre.run.proxied import ProxyClient, Sealed
from gyre.run.supervise import LOG_FILE, Secrets
from gyre.words.errors import BoundaryError, ConfigError, LogDamaged
from gyre.words.ids import ExecutionId
from gyre.words.outcomes import Closed, Ending, Fact, Outcome, Terminated
from gyre.words.tasks import Task

MOST_STARTING = 4
"""Supervisors that are being started at once; more would only wait for the machine."""
MOST_REVIVALS = 3
"""Times that a dead supervisor is started again; then its execution is excluded."""
LOOK_S = 1.0
"""How often dead supervisors are looked for, and held calls told about."""
END_S = 10.0
"""How long executions may take to end with the run."""


@dataclass(slots=True)
class Supervised:
    """One execution, from its launch on."""

    name: ExecutionId
    folder: Path
    task: Task
    birth: "asyncio.Task[Child] | None" = None
    """Of its supervisor; the last one, where it was revived."""
    is_cancelled: bool = False
    """It is surplus, or the run is over."""
    key: str = field(default="", repr=False)
    num_heard: int = 0
    num_revivals: int = 0
    terminated: Terminated | None = None
    closed: Closed | None = None
    told: Told = field(default_factory=Told)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def is_lost(self) -> bool:
        """Its supervisor has ended, or could not be born again."""
        if self.birth is None or not self.birth.done():
            return False
        return self.process is None or self.process.is_over

    @property
    def process(self) -> Child | None:
        """Its supervisor, once that is born."""
        if self.birth is None or not self.birth.done() or self.birth.exception() is not None:
            return None
        return self.birth.result()


OrderOf = Callable[[ExecutionId, Task, str], Order]
"""Name, task and address become what a supervisor is told."""


class Supervisors:
    """Executions by name, until they are forgotten."""

    def __init__(
        self,
        proxy: ProxyClient,
        births: Births,
        *,
        order_of: OrderOf,
        facts_token: str,
        terminated: Callable[[Supervised, Terminated], Awaitable[None]],
        closed: Callable[[Supervised, Closed], Awaitable[None]],
        spawn: Spawn,
    ) -> None:
        """`terminated` and `closed` hear of each execution once, in this order."""
        self._proxy = proxy
        self._births = births
        self._order_of = order_of
        self._facts_token = facts_token
        self._terminated = terminated
        self._closed = closed
        self._spawn = spawn
        self._all: dict[ExecutionId, Supervised] = {}
        self._starting = asyncio.Semaphore(MOST_STARTING)

    def launch(self, name: ExecutionId, task: Task, folder: Path) -> None:
        one = Supervised(name, folder, task)
        self._all[name] = one
        self._spawn(self._start(one))

    def cancel(self, name: ExecutionId) -> None:
        """It ends, unassessed, as surplus."""
        one = self._all[name]
        one.is_cancelled = True
        if one.process is not None:
            one.process.signal(signal.SIGUSR1)

    def forget(self, name: ExecutionId) -> None:
        """Its supervisor has said everything and ends by itself."""
        del self._all[name]

    async def heard(self, name: ExecutionId, entry: Entry) -> None:
        """A fact was posted; one that was missed before it is read from the disk."""
        one = self._all.get(name)
        if one is None:
            return
        async with one.lock:
            if entry.sequence > one.num_heard:
                await self._catch_up(one, upto=entry.sequence)
            if entry.sequence == one.num_heard:
                await self._apply(one, entry)

    async def look_after(self) -> None:
        """Supervisors that died are started again, and told how long calls were held."""
        while True:
            await asyncio.sleep(LOOK_S)
            await self.look()

    async def look(self) -> None:
        """Once."""
        for one in list(self._all.values()):
            if one.closed is None and one.is_lost:
                await self._revive(one)
        await self._tell_held()

    async def end(self) -> None:
        """Nothing of any execution runs any more."""
        births = [one.birth for one in self._all.values() if one.birth is not None]
        for one in self._all.values():
            one.is_cancelled = True
        if births:
            # One that is just being born may have nobody else left to wait for it.
            await asyncio.wait(births, timeout=END_S)
        left = [one.process for one in self._all.values() if one.process is not None]
        for process in left:
            process.signal(signal.SIGUSR1)
        await asyncio.gather(*(process.end(END_S) for process in left))

    async def _start(self, one: Supervised) -> None:
        order = self._order_of(one.name, one.task, self._proxy.url_of(one.name))
        async with self._starting:
            try:
                one.key = await self._proxy.open(one.name)
                if one.is_cancelled:
                    await self._cancelled(one)
                    return
                await asyncio.to_thread(write_order, one.folder, order)
                await self._supervise(one)
            except (OSError, ConfigError, BoundaryError) as error:
                counts = order.counts_placeholders
                async with one.lock:
                    await self._give_up(
                        one,
                        Ending.NEVER_STARTED,
                        Outcome.PLACEHOLDER if counts else Outcome.EXCLUDED,
                        str(error),
                    )

    async def _cancelled(self, one: Supervised) -> None:
        async with one.lock:
            reason = "cancelled before launch"
            await self._give_up(one, Ending.CANCELLED, Outcome.SURPLUS, reason)

    async def _supervise(self, one: Supervised) -> None:
        """A supervisor, which goes on from whatever the execution's facts say."""
        told = Secrets(key=one.key, token=self._facts_token)
        # Not given up with whoever waits, because a process that nobody knows would go on.
        one.birth = asyncio.create_task(
            self._births.birth(
                one.name,
                [str(one.folder / ORDER_FILE)],
                log=one.folder / LOG_FILE,
                told=json.dumps(asdict(told)),
                lasts=True,
            )
        )
        process = await asyncio.shield(one.birth)
        if one.is_cancelled:
            process.signal(signal.SIGUSR1)

    async def _give_up(
        self, one: Supervised, ending: Ending, outcome: Outcome, reason: str
    ) -> None:
        """Nobody else will say how it ended."""
        ended = Terminated(ending=ending, reason=reason, elapsed_s=None, state=None)
        over: list[Fact] = [Closed(outcome=outcome, score=None, reason=reason)]
        for fact in over if one.terminated is not None else [ended, *over]:
            await self._apply(one, Entry(sequence=one.num_heard, at=0.0, fact=fact))

    async def _revive(self, one: Supervised) -> None:
        """What its supervisor said last is heard, and another goes on if it was not the end."""
        async with one.lock:
            try:
                await self._catch_up(one)
            except LogDamaged as error:
                await self._give_up(one, Ending.CRASHED, Outcome.EXCLUDED, str(error))
            if one.closed is not None:
                return
            if one.num_revivals >= MOST_REVIVALS:
                reason = f"its supervisor died {MOST_REVIVALS + 1} times"
                await self._give_up(one, Ending.CRASHED, Outcome.EXCLUDED, reason)
                return
            one.num_revivals += 1
            with suppress(ConfigError, OSError):
                await self._supervise(one)

    async def _catch_up(self, one: Supervised, upto: int | None = None) -> None:
        for entry in await asyncio.to_thread(facts.read, one.folder):
            if entry.sequence >= one.num_heard and (upto is None or entry.sequence < upto):
                await self._apply(one, entry)

    async def _apply(self, one: Supervised, entry: Entry) -> None:
        one.num_heard = entry.sequence + 1
        match entry.fact:
            case Terminated() as fact:
                sealed = await self._seal(one)
                one.told = Told(held_s=sealed.held_s, committed_calls=sealed.committed_calls)
                if one.folder.exists():
                    await asyncio.to_thread(tell, one.folder, one.told)
                one.terminated = fact
                await self._terminated(one, fact)
            case Closed() as fact:
                one.closed = fact
                await self._closed(one, fact)
            case _:
                pass

    async def _seal(self, one: Supervised) -> Sealed:
        try:
            return await self._proxy.seal(one.name)
        except BoundaryError:
            # Never opened, or sealed already by a controller that died before it wrote that down.
            return Sealed(committed_calls=0, held_s=0.0)

    async def _tell_held(self) -> None:
        """Deadlines move on by what calls waited (SPEC 6.1)."""
        if not self._all:
            return
        for name, held_s in (await self._proxy.held()).items():
            one = self._all.get(ExecutionId(name))
            if one is None or one.terminated is not None or one.process is None:
                continue
            if held_s > one.told.held_s + LOOK_S:
                one.told = Told(held_s=held_s)
                await asyncio.to_thread(tell, one.folder, one.told)


SupervisorsOf = Callable[
    [
        Callable[[Supervised, Terminated], Awaitable[None]],
        Callable[[Supervised, Closed], Awaitable[None]],
    ],
    Supervisors,
]
"""Supervisors whose executions are heard of by these two."""
