"""Brings one execution from its order to its termination: prepare, launch, wait, kill, freeze."""

import asyncio
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Protocol

from gyre.rollout.execution import Deadlines, Execution, Stage
from gyre.rollout.order import Order, Told
from gyre.rollout.workspace import Workspace
from gyre.words.errors import BoundaryError, SandboxError
from gyre.words.outcomes import Ending, Fact, Launched, Prepared, State, Terminated
from gyre.words.places import Sandbox
from gyre.words.sandboxes import Level
from gyre.words.tasks import Command

OUTPUT_FILE = "output.txt"
MOST_TRIES = 3
"""At each part of a launch; then the execution never started (SPEC 6.4)."""
RETRY_S = 0.2
"""Pause before the second try; it doubles."""


class Clock(Protocol):
    """Seconds that only grow, and which start of the machine they count from."""

    @property
    def boot(self) -> str: ...

    def now(self) -> float: ...


class Supervisor:
    """One execution's harness, from before its start until nothing of it runs.

    `say` moves the execution by a fact, and returns when the fact is durable.
    """

    def __init__(
        self,
        order: Order,
        folder: Path,
        execution: Execution,
        *,
        sandbox: Sandbox,
        clock: Clock,
        say: Callable[[Fact], None],
        told: Callable[[], Told],
    ) -> None:
        self._order = order
        self._folder = folder
        self._execution = execution
        self._sandbox = sandbox
        self._clock = clock
        self._say = say
        self._told = told
        self._deadlines = Deadlines(agent_s=order.agent_s, overall_s=order.overall_s)
        self.workspace = Workspace(folder, stacks=order.sandbox.kind == "local")
        self.cancelled = asyncio.Event()
        """Set by whoever wants the harness to end."""

    def left_s(self) -> float:
        """Of the overall budget, which begins anew with the machine."""
        launched = self._launched_s()
        if launched is None:
            return self._order.overall_s
        self._deadlines.hold(self._told().held_s)
        return self._deadlines.overall_at(launched) - self._clock.now()

    async def terminate(self, mark: str, command: Callable[[], Command]) -> None:
        """The execution is terminated, from wherever it was found."""
        if self._execution.stage is Stage.RUNNING:
            await self._end(Ending.CRASHED, "its supervisor died while it ran")
            return
        try:
            await self._until_done(lambda: self._prepare(mark))
            wanted = command()
        except BoundaryError as error:
            self._never_started(str(error))
            return
        if self.cancelled.is_set():
            self._never_started("cancelled before launch")
            return
        # Said before the start, because an execution must never be launched twice.
        self._say(Launched(monotonic_s=self._clock.now(), boot=self._clock.boot))
        output, most_bytes = str(self._folder / OUTPUT_FILE), self._order.output_bytes
        try:
            await self._until_done(
                lambda: self._sandbox.start(wanted, output=output, most_bytes=most_bytes)
            )
        except SandboxError as error:
            self._never_started(str(error))
            return
        await self._end(*await self._wait())

    async def _prepare(self, mark: str) -> None:
        if self._execution.stage is Stage.NEW:
            self.workspace.prepare(self._order.task.files)
        await self._sandbox.prepare(str(self.workspace.live))
        levels = self._levels()
        if self._execution.stage is Stage.NEW:
            self._say(Prepared(mark=mark, levels=levels))

    async def _until_done(self, part: Callable[[], Awaitable[None]]) -> None:
        """A part of the launch, tried again while that may help and nobody wants it to end."""
        for number in range(1, MOST_TRIES + 1):
            try:
                await part()
                return
            except BoundaryError as error:
                if not error.retryable or number == MOST_TRIES or self.cancelled.is_set():
                    raise
            await asyncio.sleep(RETRY_S * 2 ** (number - 1))

    def _levels(self) -> tuple[Level, ...]:
        """What is in force; SandboxError if that is not what the order asks for."""
        found = self._sandbox.levels
        if missing := sorted(set(self._order.sandbox.require) - set(found)):
            message = f"sandbox.require: {', '.join(missing)}: not in force; found {found}"
            raise SandboxError(message, retryable=False)
        return found

    async def _wait(self) -> tuple[Ending, str]:
        """How the harness ended, or why it has to."""
        ended = asyncio.create_task(self._sandbox.wait())
        cancelled = asyncio.create_task(self.cancelled.wait())
        try:
            while (left_s := self._agent_left_s()) > 0:
                done, _ = await asyncio.wait(
                    {ended, cancelled}, timeout=left_s, return_when=asyncio.FIRST_COMPLETED
                )
                if ended in done:
                    return _ending(ended)
                if cancelled in done:
                    return Ending.CANCELLED, "cancelled while it ran"
            return Ending.TIMED_OUT, f"the agent's {self._order.agent_s} s are over"
        finally:
            ended.cancel()
            cancelled.cancel()
            await asyncio.gather(ended, cancelled, return_exceptions=True)

    def _agent_left_s(self) -> float:
        """Asked when a deadline seems to have come: it may have moved on since (SPEC 6.1)."""
        launched = self._launched_s()
        assert launched is not None
        self._deadlines.hold(self._told().held_s)
        return self._deadlines.agent_at(launched) - self._clock.now()

    def _launched_s(self) -> float | None:
        launched = self._execution.launched
        if launched is None or launched.boot != self._clock.boot:
            return None
        return launched.monotonic_s

    async def _end(self, ending: Ending, reason: str) -> None:
        """Nothing runs, what was left is frozen, and the fact is said."""
        launched = self._launched_s()
        elapsed_s = None if launched is None else self._clock.now() - launched
        state: State | None = None
        try:
            await self._sandbox.freeze()
            state = self.workspace.freeze()
            if state is None:
                reason = f"{reason}; the workspace is lost"
        except SandboxError as error:
            reason = f"{reason}; {error}"
        self._say(Terminated(ending=ending, reason=reason, elapsed_s=elapsed_s, state=state))

    def _never_started(self, reason: str) -> None:
        ending = Ending.CANCELLED if self.cancelled.is_set() else Ending.NEVER_STARTED
        self._say(Terminated(ending=ending, reason=reason, elapsed_s=None, state=None))


def _ending(ended: "asyncio.Task[int]") -> tuple[Ending, str]:
    try:
        status = ended.result()
    except SandboxError as error:
        return Ending.CRASHED, str(error)
    if status == 0:
        return Ending.COMPLETED, "exit status 0"
    if status > 0:
        return Ending.CRASHED, f"exit status {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    return Ending.CRASHED, f"ended by {name}"
