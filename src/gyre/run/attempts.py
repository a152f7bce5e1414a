"""Executions of a run: drawn, launched under a supervisor, heard of by their facts, and closed.

Rule 1: an execution's facts are taken in order, each once, however often they are posted.
Rule 2: its key is closed and its log final before anybody hears that it is terminated.
"""

import asyncio
import signal
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from gyre.plan.messages import (
    AdmitGroup,
    CancelExecution,
    ExecutionClosed,
    ExecutionTerminated,
    GroupAdmitted,
    GroupId,
    LaunchExecution,
)
from gyre.rollout import facts
from gyre.rollout.facts import Entry
from gyre.rollout.order import ORDER_FILE, Order, Told, tell, write_order
from gyre.run.births import Births, Child
from gyre.run.hall import Spawn
from gyre.run.materialise import Kept
from gyre.run.proxied import ProxyClient, Sealed
from gyre.run.supervise import LOG_FILE, Secrets
from gyre.stream.queries import Queries
from gyre.words.errors import BoundaryError, ConfigError
from gyre.words.events import GroupDrawn, RewardGiven
from gyre.words.ids import ExecutionId
from gyre.words.outcomes import Closed, Ending, Outcome, Terminated
from gyre.words.places import TaskSource
from gyre.words.tasks import Task

MOST_STARTING = 4
"""Supervisors that are being started at once; more would only wait for the machine."""
LOOK_S = 1.0
"""How often dead supervisors are looked for, and held calls told about."""
END_S = 10.0
"""How long executions may take to end with the run."""


@dataclass(slots=True)
class Attempt:
    """One execution of a group, from its launch on."""

    group: GroupId
    member: int
    name: ExecutionId
    folder: Path
    task: Task
    process: Child | None = None
    key: str = field(default="", repr=False)
    num_heard: int = 0
    is_surplus: bool = False
    terminated: Terminated | None = None
    closed: Closed | None = None
    told: Told = field(default_factory=Told)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


OrderOf = Callable[[ExecutionId, Task, str], Order]
"""Name, task and address become what a supervisor is told."""


class Attempts:
    """All executions that are not consumed yet, by group and member."""

    def __init__(
        self,
        folder: Path,
        tasks: TaskSource,
        queries: Queries,
        proxy: ProxyClient,
        births: Births,
        *,
        order_of: OrderOf,
        facts_token: str,
        hear: Callable[[Any], None],
        spawn: Spawn,
    ) -> None:
        self._folder = folder
        self._tasks = tasks
        self._queries = queries
        self._proxy = proxy
        self._births = births
        self._order_of = order_of
        self._facts_token = facts_token
        self._hear = hear
        self._spawn = spawn
        self._drawn: dict[GroupId, tuple[int, Task]] = {}
        self._attempts: dict[tuple[GroupId, int], Attempt] = {}
        self._names: dict[ExecutionId, Attempt] = {}
        self._starting = asyncio.Semaphore(MOST_STARTING)

    @property
    def running(self) -> Mapping[ExecutionId, tuple[GroupId, int]]:
        """Those that are launched and not terminated."""
        return {one.name: key for key, one in self._attempts.items() if one.terminated is None}

    def admit(self, command: AdmitGroup) -> None:
        """The next query is the group's."""
        position = self._queries.num_drawn
        index = self._queries.draw()
        task = self._tasks.get(index)
        self._drawn[command.group] = index, task
        names = tuple(name_of(command.group, member) for member in range(command.size))
        self._hear(
            GroupDrawn(group=command.group, position=position, task=task.id, executions=names)
        )
        self._hear(GroupAdmitted(group=command.group))

    def launch(self, command: LaunchExecution) -> None:
        group, member = command.group, command.member
        name = name_of(group, member)
        attempt = Attempt(
            group, member, name, self._folder / "attempts" / name, self._drawn[group][1]
        )
        self._attempts[group, member] = attempt
        self._names[name] = attempt
        self._spawn(self._start(attempt))

    def cancel(self, command: CancelExecution) -> None:
        """A surplus execution ends unassessed."""
        attempt = self._attempts.get((command.group, command.member))
        if attempt is None:
            # Never launched: p and f move in one event (SPEC 1.2).
            group, member = command.group, command.member
            ending, outcome = Ending.CANCELLED, Outcome.SURPLUS
            self._hear(ExecutionTerminated(group=group, member=member, ending=ending))
            self._hear(ExecutionClosed(group=group, member=member, outcome=outcome))
            return
        attempt.is_surplus = True
        if attempt.process is not None:
            attempt.process.signal(signal.SIGUSR1)

    def take(self, group: GroupId) -> dict[int, Kept | None]:
        """What a ready group's executions left, by member; nothing is kept of it here."""
        index, _ = self._drawn.pop(group)
        self._queries.done(index)
        found: dict[int, Kept | None] = {}
        for key in [key for key in self._attempts if key[0] == group]:
            attempt = self._attempts.pop(key)
            del self._names[attempt.name]
            found[attempt.member] = _kept(attempt)
        return found

    async def heard(self, execution: ExecutionId, entry: Entry) -> None:
        """A fact was posted; one that was missed before it is read from the disk."""
        attempt = self._names.get(execution)
        if attempt is None:
            return
        async with attempt.lock:
            if entry.sequence > attempt.num_heard:
                await self._catch_up(attempt, upto=entry.sequence)
            if entry.sequence == attempt.num_heard:
                await self._apply(attempt, entry)

    async def look_after(self) -> None:
        """Supervisors that died are started again, and told how long calls were held."""
        while True:
            await asyncio.sleep(LOOK_S)
            for attempt in list(self._attempts.values()):
                process = attempt.process
                if attempt.closed is None and process is not None and process.is_over:
                    await self._revive(attempt)
            await self._tell_held()

    async def end(self) -> None:
        """Nothing of any execution runs any more."""
        left = [one.process for one in self._attempts.values() if one.process is not None]
        for process in left:
            process.signal(signal.SIGUSR1)
        await asyncio.gather(*(one.end(END_S) for one in left))

    async def _start(self, attempt: Attempt) -> None:
        async with self._starting:
            attempt.key = await self._proxy.open(attempt.name)
            url = self._proxy.url_of(attempt.name)
            order = self._order_of(attempt.name, attempt.task, url)
            try:
                await asyncio.to_thread(write_order, attempt.folder, order)
                attempt.process = await self._supervised(attempt)
            except (OSError, ConfigError) as error:
                await self._never_started(attempt, str(error))
                return
        if attempt.is_surplus:
            attempt.process.signal(signal.SIGUSR1)

    async def _supervised(self, attempt: Attempt) -> Child:
        """A supervisor, which goes on from whatever the execution's facts say."""
        told = Secrets(key=attempt.key, token=self._facts_token)
        return await self._births.birth(
            attempt.name,
            [str(attempt.folder / ORDER_FILE)],
            log=attempt.folder / LOG_FILE,
            told=msgspec.json.encode(asdict(told)).decode(),
            lasts=True,
        )

    async def _never_started(self, attempt: Attempt, reason: str) -> None:
        """No supervisor could be started, so that nobody else will say so (SPEC 6.4)."""
        async with attempt.lock:
            ending = Terminated(
                ending=Ending.NEVER_STARTED, reason=reason, elapsed_s=None, state=None
            )
            await self._apply(attempt, Entry(sequence=0, at=0.0, fact=ending))
            closed = Closed(outcome=Outcome.PLACEHOLDER, score=None, reason=reason)
            await self._apply(attempt, Entry(sequence=1, at=0.0, fact=closed))

    async def _revive(self, attempt: Attempt) -> None:
        """What its supervisor said last is heard, and another goes on if it was not the end."""
        async with attempt.lock:
            await self._catch_up(attempt)
            if attempt.closed is not None:
                return
            attempt.process = await self._supervised(attempt)

    async def _catch_up(self, attempt: Attempt, upto: int | None = None) -> None:
        for entry in await asyncio.to_thread(facts.read, attempt.folder):
            if entry.sequence >= attempt.num_heard and (upto is None or entry.sequence < upto):
                await self._apply(attempt, entry)

    async def _apply(self, attempt: Attempt, entry: Entry) -> None:
        attempt.num_heard = entry.sequence + 1
        group, member = attempt.group, attempt.member
        match entry.fact:
            case Terminated() as fact:
                sealed = await self._seal(attempt)
                attempt.told = Told(held_s=sealed.held_s, committed_calls=sealed.committed_calls)
                if attempt.folder.exists():
                    await asyncio.to_thread(tell, attempt.folder, attempt.told)
                attempt.terminated = fact
                self._hear(ExecutionTerminated(group=group, member=member, ending=fact.ending))
            case Closed() as fact:
                attempt.closed = fact
                assert attempt.terminated is not None
                self._hear(
                    RewardGiven(
                        group=group,
                        member=member,
                        execution=attempt.name,
                        score=fact.score,
                        ran_s=attempt.terminated.elapsed_s,
                    )
                )
                self._hear(ExecutionClosed(group=group, member=member, outcome=fact.outcome))
            case _:
                pass

    async def _seal(self, attempt: Attempt) -> Sealed:
        try:
            return await self._proxy.seal(attempt.name)
        except BoundaryError:
            # Sealed already, by a controller that died before it wrote that down.
            return Sealed(committed_calls=0, held_s=0.0)

    async def _tell_held(self) -> None:
        """Deadlines move on by what calls waited (SPEC 6.1)."""
        if not self._names:
            return
        for name, held_s in (await self._proxy.held()).items():
            attempt = self._names.get(ExecutionId(name))
            if attempt is None or attempt.terminated is not None or attempt.process is None:
                continue
            if held_s > attempt.told.held_s + LOOK_S:
                attempt.told = Told(held_s=held_s)
                await asyncio.to_thread(tell, attempt.folder, attempt.told)


def name_of(group: int, member: int) -> ExecutionId:
    return ExecutionId(f"g{group:05d}-{member:02d}")


def _kept(attempt: Attempt) -> Kept | None:
    closed = attempt.closed
    if closed is None or closed.outcome in (Outcome.EXCLUDED, Outcome.SURPLUS):
        return None
    return Kept(execution=attempt.name, reward=0.0 if closed.score is None else closed.score)
