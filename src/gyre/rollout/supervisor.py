"""Brings one execution step by step to its termination: prepare, launch, wait, kill, freeze."""

import asyncio
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path

from gyre.rollout.deadlines import Clock, Deadlines
from gyre.rollout.execution import Execution, ExecutionStage, steps_of, why_over
from gyre.rollout.facts import FactRecorder
from gyre.rollout.spec import ExecutionSpec
from gyre.rollout.workspace import Workspace
from gyre.types.errors import BoundaryError, SandboxError, visible, wrap_errors
from gyre.types.outcomes import (
    Ending,
    Launched,
    Prepared,
    State,
    StepEnded,
    StepStarted,
    Terminated,
)
from gyre.types.places import Sandbox
from gyre.types.tasks import Command, Level, TaskStep

STEPS = "steps"
"""Folder with a folder for each step of a task that has several."""
OUTPUT_FILE = "output.txt"
SETUP = "setup.sh"
"""Script among the files of a step that is run before its agent."""
SETUP_OUTPUT_FILE = "setup.txt"
MOST_TRIES = 3
"""At each part of a launch; then the execution never started (SPEC 6.4)."""
MOST_REASON = 2_000
"""Letters of why it ended, some of which a program may have chosen."""
RETRY_S = 0.2
"""Pause before the second try; it doubles."""


class Supervisor:
    """One execution's harness, from before its start until nothing of it runs."""

    def __init__(
        self,
        order: ExecutionSpec,
        folder: Path,
        execution: Execution,
        *,
        sandbox: Sandbox,
        clock: Clock,
        deadlines: Deadlines,
        recorder: FactRecorder,
    ) -> None:
        """`recorder` moves the execution by facts, and `deadlines` are those of the execution."""
        self._order = order
        self._folder = folder
        self._execution = execution
        self._sandbox = sandbox
        self._clock = clock
        self._recorder = recorder
        self._steps = steps_of(order.task)
        self._times = deadlines
        stacks = order.sandbox.kind == "local"
        self.workspaces = [
            Workspace(folder, stacks=stacks, states=self.folder_of(number))
            for number in range(len(self._steps))
        ]
        """Of each step."""
        self.cancelled = asyncio.Event()
        """Set when the execution is cancelled: its harness ends."""

    @property
    def workspace(self) -> Workspace:
        """Of the step that was started last."""
        return self.workspaces[self._execution.step]

    def folder_of(self, step: int) -> Path:
        """Where what is left of it is kept."""
        return folder_of(self._folder, step, num_steps=len(self._steps))

    def left_s(self) -> float:
        """Of the overall budget."""
        return self._times.overall_left_s()

    def spent_s(self) -> float:
        """Of the same, by this supervisor and those before it."""
        return self._times.spent_s()

    async def advance(self, mark: str, command: Callable[[TaskStep], Command]) -> None:
        """The step that is due has ended: it is terminated, or its state waits for its judge.

        A step that another may follow is judged first.
        """
        if self._execution.is_running:
            await self._end(Ending.CRASHED, "its supervisor died while it ran")
            return
        number = self._execution.step + 1 if self._execution.launched is not None else 0
        step = self._steps[number]
        try:
            await self._until_done(lambda: self._prepare(mark, number))
            wanted = command(step)
        except BoundaryError as error:
            self._not_started(str(error))
            return
        if self.cancelled.is_set():
            self._not_started("cancelled before launch")
            return
        # Fact before the start, because nothing must ever be launched twice.
        now_s, boot = self._clock.now(), self._clock.boot
        if number == 0:
            self._recorder.record(Launched(monotonic_s=now_s, boot=boot))
        else:
            self._recorder.record(StepStarted(step=number, monotonic_s=now_s, boot=boot))
        self._times.begin()
        await self._run(step, wanted)

    def settle(self, *, has_key: bool) -> None:
        """Behind a step that was judged: the next one is due, or it is terminated here.

        Without its key it is as if it had been cancelled, and keeps nothing that could be scored,
        because it is unknown what the next step would have come to.
        """
        ended = self._execution.steps[-1]
        over = why_over(
            ended,
            name=self._steps[ended.step].name,
            is_scored=ended.step in self._execution.scores,
            is_enough=self._execution.is_enough,
            is_cancelled=self.cancelled.is_set(),
            left_s=min(self._times.agent_left_s(), self._times.overall_left_s()),
        )
        if over is not None:
            self._terminated(*over, self._times.whole_s(), ended.state)
        elif not has_key:
            reason = "a further step is due, and the execution's key is gone with whoever had it"
            self._terminated(Ending.CANCELLED, reason, self._times.whole_s(), None)

    async def _run(self, step: TaskStep, wanted: Command) -> None:
        """The step's own script first, if it has one, and within the same time."""
        if step.files is not None and (Path(step.files) / SETUP).is_file():
            setup = Command(argv=("bash", SETUP), variables=self._order.task.variables)
            found = await self._done(setup, SETUP_OUTPUT_FILE)
            if found is None:
                return
            if found[0] is not Ending.COMPLETED:
                await self._end(found[0], f"{SETUP}: {found[1]}")
                return
            await self._sandbox.kill()
        found = await self._done(wanted, OUTPUT_FILE)
        if found is not None:
            await self._end(*found)

    async def _done(self, command: Command, output: str) -> tuple[Ending, str] | None:
        """How a program came to its end; None: it could not start, and that is said."""
        folder = self.folder_of(self._execution.step)
        to, most_bytes = str(folder / output), self._order.output_bytes

        async def start() -> None:
            with wrap_errors(SandboxError, f"folder of step {self._execution.step}"):
                folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            await self._sandbox.start(command, output=to, most_bytes=most_bytes)

        try:
            await self._until_done(start)
        except SandboxError as error:
            self._not_started(str(error))
            return None
        return await self._wait()

    async def _prepare(self, mark: str, number: int) -> None:
        workspace, step = self.workspaces[number], self._steps[number]
        is_new = self._execution.stage is ExecutionStage.NEW
        if is_new:
            workspace.prepare(self._order.task.files)
        elif number > 0:
            workspace.go_on(self.workspaces[number - 1])
        if step.files is not None and (is_new or number > 0):
            workspace.put(step.files)
        await self._sandbox.prepare(str(workspace.live))
        levels = self._levels()
        if is_new:
            self._recorder.record(Prepared(mark=mark, levels=levels))

    async def _until_done(self, part: Callable[[], Awaitable[None]]) -> None:
        """A part of the launch, tried again while that may help and it is not cancelled."""
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
        """How the program ended, or why it has to."""
        ended = asyncio.create_task(self._sandbox.wait())
        cancelled = asyncio.create_task(self.cancelled.wait())
        try:
            while (left_s := self._times.step_left_s()) > 0:
                done, _ = await asyncio.wait(
                    {ended, cancelled}, timeout=left_s, return_when=asyncio.FIRST_COMPLETED
                )
                if ended in done:
                    return _ending(ended)
                if cancelled in done:
                    return Ending.CANCELLED, "cancelled while it ran"
            return Ending.TIMED_OUT, self._times.whose_is_over()
        finally:
            ended.cancel()
            cancelled.cancel()
            await asyncio.gather(ended, cancelled, return_exceptions=True)

    async def _end(self, ending: Ending, reason: str) -> None:
        """Nothing runs, what was left is frozen, and the fact is said."""
        elapsed_s, whole_s = self._times.step_s(), self._times.whole_s()
        may_follow = ending is not Ending.CANCELLED and self._times.agent_left_s() > 0
        number = self._execution.step
        state: State | None = None
        try:
            await self._sandbox.freeze()
            state = self.workspace.freeze()
            if state is None:
                reason = f"{reason}; the workspace is lost"
        except SandboxError as error:
            reason = f"{reason}; {error}"
        if state is None or not may_follow or number + 1 == len(self._steps):
            self._terminated(ending, reason, whole_s, state)
            return
        reason = visible(reason, MOST_REASON)
        self._recorder.record(
            StepEnded(step=number, ending=ending, reason=reason, elapsed_s=elapsed_s, state=state)
        )

    def _terminated(
        self, ending: Ending, reason: str, elapsed_s: float | None, state: State | None
    ) -> None:
        said = visible(reason, MOST_REASON)
        self._recorder.record(
            Terminated(ending=ending, reason=said, elapsed_s=elapsed_s, state=state)
        )

    def _not_started(self, reason: str) -> None:
        """Behind a step, what was done says nothing of the one that could not be."""
        if self.cancelled.is_set():
            self._terminated(Ending.CANCELLED, reason, None, self._execution.state)
            return
        ending = Ending.CRASHED if self._execution.steps else Ending.NEVER_STARTED
        self._terminated(ending, reason, None, None)


def folder_of(attempt: Path, step: int, *, num_steps: int) -> Path:
    """What is left of a step is in a folder of its own, unless it is the only one."""
    return attempt / STEPS / f"{step:02d}" if num_steps > 1 else attempt


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
