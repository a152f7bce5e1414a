"""Executions under supervisors: started, followed by their facts, revived, ended with the run.

Rule 1: an execution's facts are taken in order, each once, however often they are posted.
Rule 2: its key is closed and its log final before its termination is recorded.
Rule 3: a supervisor of an earlier controller goes on undisturbed; no harness is started twice.
"""

import asyncio
import errno
import json
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Protocol

from gyre.aio import Spawn, done_within
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
CANCEL, STOP = signal.SIGUSR1, signal.SIGUSR2
"""Signals to a supervisor: its execution is surplus; its run is stopped, and may be resumed."""


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


class ProcessSignaller(Protocol):
    """Signals processes that are known by their logs, on this machine or another."""

    def signal_log_holder(self, log: str, number: int) -> None: ...


class ForkedSupervisor:
    """A supervisor that this controller forks, from the moment it begins to."""

    def __init__(self, forking: "asyncio.Task[ProcessHandle]") -> None:
        self.forking = forking

    @property
    def is_over(self) -> bool:
        """It has ended, or could not be forked."""
        return self.forking.done() and (self._process is None or self._process.is_over)

    def signal(self, number: signal.Signals) -> None:
        if self._process is not None:
            self._process.signal(number)

    async def end(self, within_s: float) -> None:
        """It has ended, by itself if it does so in time."""
        if self._process is not None:
            await self._process.end(within_s)

    @property
    def _process(self) -> ProcessHandle | None:
        if not self.forking.done() or self.forking.exception() is not None:
            return None
        return self.forking.result()


class AdoptedSupervisor:
    """A supervisor that is no child of this controller's, by its folder's lock and its log."""

    __slots__ = ("_by", "_folder")

    def __init__(self, folder: Path, by: ProcessSignaller) -> None:
        self._folder = folder
        self._by = by

    @property
    def is_over(self) -> bool:
        return not is_taken(self._folder)

    def signal(self, number: signal.Signals) -> None:
        if not self.is_over:
            self._by.signal_log_holder(str(self._folder / LOG_FILE), number)

    async def end(self, within_s: float) -> None:
        """It has ended, by itself if it does so in time."""
        if not await done_within(within_s, self._wait()):
            self.signal(signal.SIGKILL)
            # On another machine that takes a while, and its node agent must not go before.
            await done_within(KILL_S, self._wait())

    async def _wait(self) -> None:
        while not self.is_over:
            await asyncio.sleep(LOOK_S)


SupervisorHandle = ForkedSupervisor | AdoptedSupervisor


class SupervisorHealth:
    """Whether a supervisor that lives still shows that it does."""

    __slots__ = ("_beat", "_silence")

    def __init__(self) -> None:
        self._beat: int | None = None
        self.renew()

    def renew(self) -> None:
        """Another supervisor takes its place, with a silence of its own."""
        # After a pause of the whole machine it has time to show that it lives.
        self._silence = SilenceTimer(SILENT_S, questions=QUESTIONS)

    def is_hung(self, beat: int | None, now: float) -> bool:
        """`beat` is its last; one that never showed that it lives is not judged."""
        if beat is None:
            return False
        if beat != self._beat:
            self._beat = beat
            self._silence.answered(now)
        return self._silence.is_over(now)


@dataclass(slots=True, eq=False)
class SupervisedExecution:
    """One execution as the controller knows it, from its launch on, and its supervisor."""

    name: ExecutionId
    folder: Path
    task: Task
    listener: "ExecutionListener"
    is_cancelled: bool = False
    """It is surplus, or the run is over."""
    was_terminated: bool = False
    """An earlier controller recorded its termination."""
    is_adopted: bool = False
    """An earlier controller launched it, or it is unknown whether its supervisor was forked."""
    supervisor: SupervisorHandle | None = None
    """The last one; None until there is a first."""
    health: SupervisorHealth = field(default_factory=SupervisorHealth)
    num_revivals: int = 0
    key: str = field(default="", repr=False)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held by the task that takes in its facts."""
    next_sequence: int = 0
    read_bytes: int | None = None
    """Of its facts, when they were last read where they lie."""
    has_run: bool = False
    """Its harness was launched; another supervisor needs no key for what is left."""
    terminated: Terminated | None = None
    closed: Closed | None = None
    proxy_totals: ProxyTotals = field(default_factory=ProxyTotals)
    held: HeldTime = field(default_factory=HeldTime)

    def signal(self, number: signal.Signals) -> None:
        """Its supervisor gets it, if there is one."""
        if self.supervisor is not None:
            self.supervisor.signal(number)


class ExecutionListener(Protocol):
    """Hears of executions: of each once that it terminated, and then that it closed."""

    async def terminated(self, execution: SupervisedExecution, fact: Terminated) -> None: ...

    async def closed(self, execution: SupervisedExecution, fact: Closed) -> None: ...

    def lost(self, execution: SupervisedExecution, reason: str) -> None:
        """It never ran, or was ended with an earlier controller; it is forgotten."""
        ...


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
        spawn: Spawn,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._proxy = proxy
        self._fork_client = fork_client
        self._order_of = order_of
        self._facts_token = facts_token
        self._spawn = spawn
        self._clock = clock
        self._all: dict[ExecutionId, SupervisedExecution] = {}
        self._starting = asyncio.Semaphore(MOST_STARTING)

    def launch(
        self, name: ExecutionId, task: Task, folder: Path, listener: ExecutionListener
    ) -> None:
        self._all[name] = execution = SupervisedExecution(name, folder, task, listener)
        self._spawn(self._start(execution))

    def adopt(
        self,
        name: ExecutionId,
        task: Task,
        folder: Path,
        listener: ExecutionListener,
        *,
        is_cancelled: bool = False,
        is_terminated: bool = False,
    ) -> None:
        """One that an earlier controller launched, or was about to.

        It is reported as if it were our own, except for what is recorded already: that it was
        cancelled, and that it terminated.
        """
        self._all[name] = execution = SupervisedExecution(
            name,
            folder,
            task,
            listener,
            is_cancelled=is_cancelled,
            was_terminated=is_terminated,
        )
        self._spawn(self._take_up(execution))

    def cancel(self, name: ExecutionId) -> None:
        """It ends, unassessed, as surplus."""
        execution = self._all[name]
        execution.is_cancelled = True
        execution.signal(CANCEL)

    def forget(self, name: ExecutionId) -> None:
        """Its supervisor, if it had one here, has posted its last fact and ends by itself."""
        self._all.pop(name, None)

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
            if execution.closed is not None or execution.supervisor is None:
                continue
            if execution.supervisor.is_over:
                await self._revive(execution)
            elif execution.health.is_hung(last_heartbeat(execution.folder), self._clock()):
                execution.health.renew()
                execution.signal(signal.SIGKILL)
            elif execution.is_adopted:
                await self._listen(execution)
        await self._tell_held()

    async def end(self, *, for_good: bool = False) -> None:
        """Nothing of any execution runs any more.

        What has ended and is not assessed yet can be when the run is resumed, unless it is over.
        """
        forking = [
            execution.supervisor.forking
            for execution in self._all.values()
            if isinstance(execution.supervisor, ForkedSupervisor)
        ]
        if forking:
            # A process that is just being forked may have nothing else left to wait for it.
            await asyncio.wait(forking, timeout=END_S)
        for execution in self._all.values():
            execution.is_cancelled = True
            if not for_good:
                execution.signal(STOP)
            elif execution.terminated is None:
                execution.signal(CANCEL)
        supervisors = [execution.supervisor for execution in self._all.values()]
        await asyncio.gather(*(supervisor.end(END_S) for supervisor in supervisors if supervisor))

    # Of earlier controllers

    async def _take_up(self, execution: SupervisedExecution) -> None:
        """Takes the facts that were written while no controller ran, and then those that follow."""
        if not (execution.folder / ORDER_FILE).exists():
            await self._begin(execution)
            return
        self._take_for_adopted(execution)
        execution.proxy_totals = await asyncio.to_thread(read_proxy_totals, execution.folder)
        execution.held = HeldTime(execution.proxy_totals.held_s)
        await self._listen(execution)
        if execution.closed is None and execution.is_cancelled:
            execution.signal(CANCEL)

    def _take_for_adopted(self, execution: SupervisedExecution) -> None:
        """It has a supervisor, or had one, that is no child of this controller's."""
        execution.is_adopted = True
        execution.supervisor = AdoptedSupervisor(execution.folder, self._fork_client)

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
        if execution.was_terminated:
            await self._give_up(execution, Ending.CRASHED, Outcome.EXCLUDED, reason)
            return
        await self._seal(execution)
        del self._all[execution.name]
        execution.closed = Closed(outcome=Outcome.EXCLUDED, score=None, reason=reason)
        execution.listener.lost(execution, reason)

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
            self._take_for_adopted(execution)

    async def _supervise(self, execution: SupervisedExecution) -> None:
        """Forks a supervisor, which goes on from where the execution's facts end."""
        keys = Secrets(key=execution.key, token=self._facts_token)
        # Not cancelled with this coroutine, because the forked process would go on unknown.
        forking = asyncio.create_task(
            self._fork_client.fork(
                execution.name,
                [str(execution.folder / ORDER_FILE)],
                log=execution.folder / LOG_FILE,
                secret=json.dumps(asdict(keys)),
                outlives_parent=True,
            )
        )
        execution.supervisor = ForkedSupervisor(forking)
        process = await asyncio.shield(forking)
        if execution.is_cancelled:
            process.signal(CANCEL)

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
                await execution.listener.closed(execution, fact)
            case _:
                pass
        # Only now, because a fact that could not be taken in is posted again.
        execution.next_sequence = entry.sequence + 1

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
            await self._write_totals(execution)
        execution.terminated = fact
        await execution.listener.terminated(execution, fact)

    async def _write_totals(self, execution: SupervisedExecution) -> None:
        """How it closes depends on them, so a disk that is full for a while is waited for."""
        while True:
            totals = execution.proxy_totals
            try:
                await asyncio.to_thread(write_proxy_totals, execution.folder, totals)
            except OSError as error:
                if error.errno not in FULL:
                    raise
                if execution.is_cancelled:
                    return  # It closes as surplus, or when its run is resumed.
                await asyncio.sleep(POLL_S)
            else:
                return

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
            if execution is None or execution.terminated is not None:
                continue
            if execution.supervisor is None or execution.lock.locked():
                continue  # Its end may be under way, which writes them too.
            held_s = execution.held.counted(held_s)
            if held_s > execution.proxy_totals.held_s + POLL_S:
                async with execution.lock:
                    await self._try_to_write(execution, ProxyTotals(held_s=held_s))

    async def _try_to_write(self, execution: SupervisedExecution, totals: ProxyTotals) -> None:
        """They are written a second later where the disk is full now."""
        try:
            await asyncio.to_thread(write_proxy_totals, execution.folder, totals)
        except OSError as error:
            if error.errno not in FULL:
                raise
        else:
            execution.proxy_totals = totals
