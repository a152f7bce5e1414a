"""Supervisor processes: start, adopt, revive, listen.

Executions under supervisors: started, followed by their facts, revived, ended with the run.

Rule 1: an execution's facts are taken in order, each once, however often they are posted.
Rule 2: its key is closed and its log final before its termination is recorded.
Rule 3: a supervisor of an earlier controller goes on undisturbed; no harness is started twice.
"""

import asyncio
import errno
import json
import signal
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Protocol

from gyre.aio import Spawn
from gyre.cluster.fork_client import ProcessForker
from gyre.cluster.liveness import QUESTIONS, SilenceTimer
from gyre.proxy.client import SealedExecution, ShardedProxyClient
from gyre.rollout import facts
from gyre.rollout.facts import FactEntry
from gyre.rollout.heartbeat import last_heartbeat
from gyre.rollout.main import LOG_FILE, Secrets
from gyre.rollout.spec import (
    ORDER_FILE,
    ExecutionSpec,
    ProxyTotals,
    read_proxy_totals,
    withdraw_order,
    write_order,
    write_proxy_totals,
)
from gyre.storage.files import is_taken
from gyre.types.errors import BoundaryError, ConfigError, LogDamaged
from gyre.types.ids import ExecutionId
from gyre.types.outcomes import Closed, Ending, Fact, Launched, Outcome, Terminated
from gyre.types.protocols import ProcessHandle
from gyre.types.tasks import Task

LOOK_S = 0.1
"""How often an adopted supervisor, which is no child of this process, is looked for."""

SILENT_S = 120.0
"""A supervisor that shows for so long not that it lives counts as dead; it does every few."""
KILL_S = 5.0
"""How long one that is killed may take to be gone, wherever it is."""


class HeldTime:
    """Seconds that an execution's calls were held, also by proxies that have ended since."""

    def __init__(self, held_s: float = 0.0) -> None:
        """`held_s` is what was counted before."""
        self._before_s = 0.0
        self._last_s = held_s

    def counted(self, held_s: float) -> float:
        """All in all, when the present proxy counts so much; a new one begins with nothing."""
        if held_s < self._last_s:
            self._before_s += self._last_s
        self._last_s = held_s
        return self._before_s + held_s


def unheard() -> SilenceTimer:
    """Of a supervisor; after a pause of the whole machine it has time to show that it lives."""
    return SilenceTimer(SILENT_S, questions=QUESTIONS)


class ProcessSignaller(Protocol):
    """Signals processes that are known by their logs, on this machine or another."""

    def signal_log_holder(self, log: str, number: int) -> None: ...


def signal_supervisor(folder: Path, number: signal.Signals, by: ProcessSignaller) -> None:
    """Signals the adopted supervisor of an execution's folder, if it lives."""
    if is_taken(folder):
        by.signal_log_holder(str(folder / LOG_FILE), number)


def stop(folder: Path, by: ProcessSignaller) -> None:
    """Signals the same supervisor that its run is stopped, and may be resumed."""
    signal_supervisor(folder, signal.SIGUSR2, by)


async def end(folder: Path, within_s: float, by: ProcessSignaller) -> None:
    """The same one has ended, by itself if it does so in time."""
    if not await _has_ended(folder, within_s):
        signal_supervisor(folder, signal.SIGKILL, by)
        # On another machine that takes a while, and its node agent must not go before.
        await _has_ended(folder, KILL_S)


async def _has_ended(folder: Path, within_s: float) -> bool:
    try:
        async with asyncio.timeout(within_s):
            while is_taken(folder):
                await asyncio.sleep(LOOK_S)
    except TimeoutError:
        return False
    return True


@dataclass(slots=True)
class SupervisedExecution:
    """One execution as the controller knows it, from its launch on, and its supervisor process."""

    name: ExecutionId
    folder: Path
    task: Task
    by: ProcessSignaller
    """Signals its supervisor where that is no child of this controller."""
    fork: "asyncio.Task[ProcessHandle] | None" = None
    """Of its supervisor; the last one, where it was revived."""
    is_cancelled: bool = False
    """It is surplus, or the run is over."""
    is_adopted: bool = False
    """An earlier controller launched it; its supervisor is that one's child, or has died."""
    was_terminated: bool = False
    """An earlier controller recorded its termination."""
    key: str = field(default="", repr=False)
    next_sequence: int = 0
    read_bytes: int | None = None
    """Of its facts, when they were last read where they lie."""
    num_revivals: int = 0
    has_run: bool = False
    """Its harness was launched; another supervisor needs no key for what is left."""
    terminated: Terminated | None = None
    closed: Closed | None = None
    proxy_totals: ProxyTotals = field(default_factory=ProxyTotals)
    held: HeldTime = field(default_factory=HeldTime)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    beat: int | None = None
    """By which its supervisor showed last that it lives."""
    silence: SilenceTimer = field(default_factory=unheard)

    @property
    def is_lost(self) -> bool:
        """Its supervisor has ended, or could not be forked again."""
        if self.fork is None:
            return self.is_adopted and not is_taken(self.folder)
        if not self.fork.done():
            return False
        return self.process is None or self.process.is_over

    @property
    def is_supervised(self) -> bool:
        """It has a supervisor process, which reads its proxy totals."""
        return self.process is not None or (self.fork is None and self.is_adopted)

    def is_hung(self, now: float) -> bool:
        """Its supervisor lives and does nothing; one that never showed it lives is not judged."""
        beat = last_heartbeat(self.folder)
        if beat is None or not self.is_supervised:
            return False
        if beat != self.beat:
            self.beat = beat
            self.silence.answered(now)
        return self.silence.is_over(now)

    def kill(self) -> None:
        """Its supervisor ends, and another may take its place, with a silence of its own."""
        self.silence = unheard()
        if self.process is not None:
            self.process.signal(signal.SIGKILL)
        else:
            signal_supervisor(self.folder, signal.SIGKILL, self.by)

    def surplus(self) -> None:
        """Signals its supervisor, if there is one, to end it unassessed."""
        if self.process is not None:
            self.process.signal(signal.SIGUSR1)
        elif self.is_adopted and self.fork is None:
            signal_supervisor(self.folder, signal.SIGUSR1, self.by)

    def stop(self) -> None:
        """Signals its supervisor that the run is stopped, and may be resumed."""
        if self.process is not None:
            self.process.signal(signal.SIGUSR2)
        elif self.is_adopted and self.fork is None:
            stop(self.folder, self.by)

    async def end(self, within_s: float) -> None:
        """Its supervisor has ended, by itself if it does so in time."""
        if self.process is not None:
            await self.process.end(within_s)
        elif self.fork is None and self.is_adopted:
            await end(self.folder, within_s, self.by)

    @property
    def process(self) -> ProcessHandle | None:
        """Its supervisor, once that is forked."""
        if self.fork is None or not self.fork.done() or self.fork.exception() is not None:
            return None
        return self.fork.result()


MOST_STARTING = 4
"""Supervisors that are being started at once; more would only wait for the machine."""
MOST_REVIVALS = 3
"""Times that a dead supervisor is started again; then its execution is excluded."""
POLL_S = 1.0
"""How often dead supervisors are looked for, and proxy totals written for the others."""
FULL = (errno.ENOSPC, errno.EDQUOT)
END_S = 10.0
"""How long executions may take to end with the run."""


OrderOf = Callable[[ExecutionId, Task, str], ExecutionSpec]
"""Makes the spec of an execution from its name, its task and the proxy's address."""


class Supervisors:
    """Starts, adopts, revives and ends the supervisors of executions, and takes their facts."""

    def __init__(
        self,
        proxy: ShardedProxyClient,
        fork_client: ProcessForker,
        *,
        order_of: OrderOf,
        facts_token: str,
        terminated: Callable[[SupervisedExecution, Terminated], Awaitable[None]],
        closed: Callable[[SupervisedExecution, Closed], Awaitable[None]],
        spawn: Spawn,
        lost: Callable[[SupervisedExecution, str], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`terminated` and `closed` are called once for each execution, in this order.

        `lost` is called, with the reason, for one that never ran or was ended with an earlier
        controller; it is forgotten here. Without it such an execution is excluded.
        """
        self._proxy = proxy
        self._fork_client = fork_client
        self._order_of = order_of
        self._facts_token = facts_token
        self._terminated = terminated
        self._closed = closed
        self._spawn = spawn
        self._lost = lost
        self._clock = clock
        self._all: dict[ExecutionId, SupervisedExecution] = {}
        self._starting = asyncio.Semaphore(MOST_STARTING)

    def launch(self, name: ExecutionId, task: Task, folder: Path) -> None:
        execution = SupervisedExecution(name, folder, task, self._fork_client)
        self._all[name] = execution
        self._spawn(self._start(execution))

    def adopt(
        self,
        name: ExecutionId,
        task: Task,
        folder: Path,
        *,
        is_cancelled: bool = False,
        is_terminated: bool = False,
    ) -> None:
        """One that an earlier controller launched, or was about to.

        It is reported as if it were our own, except for what is recorded already: that it was
        cancelled, and that it terminated.
        """
        execution = SupervisedExecution(
            name, folder, task, self._fork_client, is_cancelled=is_cancelled
        )
        execution.was_terminated = is_terminated
        self._all[name] = execution
        self._spawn(self._take_up(execution))

    def cancel(self, name: ExecutionId) -> None:
        """It ends, unassessed, as surplus."""
        execution = self._all[name]
        execution.is_cancelled = True
        execution.surplus()

    def forget(self, name: ExecutionId) -> None:
        """Its supervisor has posted its last fact and ends by itself."""
        del self._all[name]

    async def receive(self, name: ExecutionId, entry: FactEntry) -> None:
        """A fact was posted; one that was missed before it is read from the disk."""
        execution = self._all.get(name)
        if execution is None:
            return
        async with execution.lock:
            if entry.sequence > execution.next_sequence:
                await self._catch_up(execution, upto=entry.sequence)
            if entry.sequence == execution.next_sequence:
                await self._apply(execution, entry)

    async def look_after(self) -> None:
        """Revives supervisors that died or hang; tells the others how long calls were held."""
        while True:
            await asyncio.sleep(POLL_S)
            await self.look()

    async def look(self) -> None:
        """Once."""
        for execution in list(self._all.values()):
            if execution.closed is None and execution.is_lost:
                await self._revive(execution)
            elif execution.closed is None and execution.is_hung(self._clock()):
                execution.kill()
            elif execution.closed is None and execution.is_adopted:
                await self._listen(execution)
        await self._tell_held()

    async def end(self, *, for_good: bool = False) -> None:
        """Nothing of any execution runs any more.

        What has ended and is not assessed yet can be when the run is resumed, unless it is over.
        """
        forks = [execution.fork for execution in self._all.values() if execution.fork is not None]
        if forks:
            # A process that is just being forked may have nothing else left to wait for it.
            await asyncio.wait(forks, timeout=END_S)
        for execution in self._all.values():
            execution.is_cancelled = True
            if not for_good:
                execution.stop()
            elif execution.terminated is None:
                execution.surplus()
        await asyncio.gather(*(execution.end(END_S) for execution in self._all.values()))

    # Of earlier controllers

    async def _take_up(self, execution: SupervisedExecution) -> None:
        """Takes the facts that were written while no controller ran, and then those that follow."""
        if not (execution.folder / ORDER_FILE).exists():
            await self._begin(execution)
            return
        execution.is_adopted = True
        execution.proxy_totals = await asyncio.to_thread(read_proxy_totals, execution.folder)
        execution.held = HeldTime(execution.proxy_totals.held_s)
        await self._listen(execution)
        if execution.closed is None and execution.is_cancelled:
            execution.surplus()

    async def _begin(self, execution: SupervisedExecution) -> None:
        """It was never started; if that is recorded already, only how it closed is missing."""
        if not execution.was_terminated:
            await self._start(execution)
            return
        order = self._order_of(execution.name, execution.task, self._proxy.url_of(execution.name))
        async with execution.lock:
            outcome = Outcome.PLACEHOLDER if order.counts_placeholders else Outcome.EXCLUDED
            outcome = Outcome.SURPLUS if execution.is_cancelled else outcome
            await self._give_up(execution, Ending.NEVER_STARTED, outcome, "it never started")

    async def _listen(self, execution: SupervisedExecution) -> None:
        """Facts that were not posted, or not here, are read where they lie.

        A spec names the address of the controller that wrote it; a revived supervisor posts there.
        """
        try:
            size = (execution.folder / facts.FACTS_FILE).stat().st_size
        except FileNotFoundError:
            return
        if size == execution.read_bytes:
            return
        async with execution.lock:
            execution.read_bytes = size
            try:
                await self._catch_up(execution)
            except LogDamaged as error:
                await self._give_up(execution, Ending.CRASHED, Outcome.EXCLUDED, str(error))

    async def _abandon(self, execution: SupervisedExecution, reason: str) -> None:
        """It cannot go on, and nothing that it did counts."""
        if self._lost is None or execution.was_terminated:
            await self._give_up(execution, Ending.CRASHED, Outcome.EXCLUDED, reason)
            return
        await self._seal(execution)
        del self._all[execution.name]
        execution.closed = Closed(outcome=Outcome.EXCLUDED, score=None, reason=reason)
        self._lost(execution, reason)

    # Starting

    async def _start(self, execution: SupervisedExecution) -> None:
        order = self._order_of(execution.name, execution.task, self._proxy.url_of(execution.name))
        async with self._starting:
            try:
                key = await self._proxy.open(execution.name)
                if execution.is_cancelled:
                    await self._cancelled(execution)
                    return
                if key is None:
                    async with execution.lock:
                        await self._abandon(execution, "its key was told to nobody who lives")
                    return
                execution.key = key
                await self._with_room(execution, order)
                await self._try_to_supervise(execution)
            except (OSError, ConfigError, BoundaryError) as error:
                counts = order.counts_placeholders
                async with execution.lock:
                    await self._give_up(
                        execution,
                        Ending.NEVER_STARTED,
                        Outcome.PLACEHOLDER if counts else Outcome.EXCLUDED,
                        str(error),
                    )

    async def _with_room(self, execution: SupervisedExecution, order: ExecutionSpec) -> None:
        """Its order is on the disk, which may be full for a while: that is not its doing."""
        while True:
            try:
                await asyncio.to_thread(write_order, execution.folder, order)
            except OSError as error:
                if error.errno not in FULL or execution.is_cancelled:
                    raise
                await asyncio.sleep(POLL_S)
            else:
                return

    async def _cancelled(self, execution: SupervisedExecution) -> None:
        async with execution.lock:
            reason = "cancelled before launch"
            await self._give_up(execution, Ending.CANCELLED, Outcome.SURPLUS, reason)

    async def _try_to_supervise(self, execution: SupervisedExecution) -> None:
        """A fork server may die while it is asked: then it is unknown whether a supervisor runs."""
        try:
            await self._supervise(execution)
        except ConfigError:
            execution.fork, execution.is_adopted = None, True

    async def _supervise(self, execution: SupervisedExecution) -> None:
        """Forks a supervisor, which goes on from where the execution's facts end."""
        keys = Secrets(key=execution.key, token=self._facts_token)
        # Not cancelled with this coroutine, because the forked process would go on unknown.
        execution.fork = asyncio.create_task(
            self._fork_client.fork(
                execution.name,
                [str(execution.folder / ORDER_FILE)],
                log=execution.folder / LOG_FILE,
                secret=json.dumps(asdict(keys)),
                outlives_parent=True,
            )
        )
        process = await asyncio.shield(execution.fork)
        if execution.is_cancelled:
            process.signal(signal.SIGUSR1)

    async def _give_up(
        self, execution: SupervisedExecution, ending: Ending, outcome: Outcome, reason: str
    ) -> None:
        """Records the end of an execution that no supervisor will report."""
        ended = Terminated(ending=ending, reason=reason, elapsed_s=None, state=None)
        over: list[Fact] = [Closed(outcome=outcome, score=None, reason=reason)]
        for fact in over if execution.terminated is not None else [ended, *over]:
            await self._apply(
                execution, FactEntry(sequence=execution.next_sequence, at=0.0, fact=fact)
            )

    async def _revive(self, execution: SupervisedExecution) -> None:
        """Takes its supervisor's last facts; another goes on if they were not the end."""
        async with execution.lock:
            try:
                await self._catch_up(execution)
            except LogDamaged as error:
                await self._give_up(execution, Ending.CRASHED, Outcome.EXCLUDED, str(error))
            if execution.closed is not None:
                return
            if execution.is_adopted and not (
                execution.key or execution.has_run or execution.terminated
            ):
                # Its fork server may be slow, and fork it yet.
                if await asyncio.to_thread(withdraw_order, execution.folder):
                    await self._abandon(execution, "its supervisor died before the program ran")
                return
            if execution.num_revivals >= MOST_REVIVALS:
                reason = f"its supervisor died {MOST_REVIVALS + 1} times"
                await self._give_up(execution, Ending.CRASHED, Outcome.EXCLUDED, reason)
                return
            execution.num_revivals += 1
            with suppress(OSError):
                await self._try_to_supervise(execution)

    async def _catch_up(self, execution: SupervisedExecution, upto: int | None = None) -> None:
        for entry in await asyncio.to_thread(facts.read, execution.folder):
            if execution.closed is not None:
                return
            if entry.sequence >= execution.next_sequence and (
                upto is None or entry.sequence < upto
            ):
                await self._apply(execution, entry)

    async def _apply(self, execution: SupervisedExecution, entry: FactEntry) -> None:
        execution.next_sequence = entry.sequence + 1
        match entry.fact:
            case Launched():
                execution.has_run = True
            case Terminated() as fact:
                await self._apply_end(execution, fact)
            case Closed() as fact:
                if fact.outcome is Outcome.SURPLUS and not execution.is_cancelled:
                    # Ended with its controller while it was assessed, which no other fact says.
                    fact = replace(fact, outcome=Outcome.EXCLUDED)
                execution.closed = fact
                await self._closed(execution, fact)
            case _:
                pass

    async def _apply_end(self, execution: SupervisedExecution, fact: Terminated) -> None:
        if execution.was_terminated:
            execution.terminated = fact
            return
        if fact.ending is Ending.CANCELLED and execution.is_adopted and not execution.is_cancelled:
            await self._abandon(execution, "its program was ended with an earlier controller")
            return
        sealed = await self._seal(execution)
        held_s = execution.held.counted(sealed.held_s)
        execution.proxy_totals = ProxyTotals(held_s=held_s, committed_calls=sealed.committed_calls)
        if execution.folder.exists():
            await asyncio.to_thread(write_proxy_totals, execution.folder, execution.proxy_totals)
        execution.terminated = fact
        await self._terminated(execution, fact)

    async def _seal(self, execution: SupervisedExecution) -> SealedExecution:
        try:
            return await self._proxy.seal(execution.name)
        except BoundaryError:
            # Never opened.
            return SealedExecution(committed_calls=0, held_s=0.0)

    async def _tell_held(self) -> None:
        """Deadlines move on by what calls waited (SPEC 6.1).

        Also asked when nothing runs, because a proxy that is not asked counts its run as abandoned.
        """
        for name, held_s in (await self._proxy.held()).items():
            execution = self._all.get(ExecutionId(name))
            if execution is None or execution.terminated is not None or not execution.is_supervised:
                continue
            held_s = execution.held.counted(held_s)
            if held_s > execution.proxy_totals.held_s + POLL_S:
                execution.proxy_totals = ProxyTotals(held_s=held_s)
                await asyncio.to_thread(
                    write_proxy_totals, execution.folder, execution.proxy_totals
                )


SupervisorsOf = Callable[
    [
        Callable[[SupervisedExecution, Terminated], Awaitable[None]],
        Callable[[SupervisedExecution, Closed], Awaitable[None]],
        Callable[[SupervisedExecution, str], None],
    ],
    Supervisors,
]
"""Makes supervisors with these callbacks: terminated, closed, lost."""
