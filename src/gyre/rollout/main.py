"""The supervisor process of one execution: launches it, ends it, has it assessed, and closes it.

    python -m gyre.rollout.main FOLDER/order.json < secrets

It has a session of its own and outlives its controller; started again after a death it goes on
from the facts. SIGTERM cancels the harness; SIGUSR1 cancels it as surplus, which is not assessed.
SIGUSR2 says that the run is stopped and may be resumed: a harness that runs is cancelled, one that
has ended keeps what it did, and the controller that resumes has it assessed.
"""

import asyncio
import os
import secrets
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from gyre.aio import run_loop
from gyre.harnesses.command import CommandHarness, environment
from gyre.rewards.assessment import closing
from gyre.rewards.retry import attempts
from gyre.rollout import facts
from gyre.rollout.deadlines import Deadlines
from gyre.rollout.environment import address_of, agent_sandbox, evaluator_for, judging_sandbox
from gyre.rollout.execution import Execution, ExecutionStage, steps_of, worth
from gyre.rollout.facts import FactRecorder, FactReporter, FactsFile
from gyre.rollout.heartbeat import Heartbeat, last_spent_s
from gyre.rollout.spec import ExecutionSpec, read_order, read_proxy_totals
from gyre.rollout.supervisor import Supervisor
from gyre.sandboxes.local.sandbox import warm as warm_sandboxes
from gyre.sandboxes.process_tree import adopt_orphans
from gyre.sandboxes.proxy_relay import Upstream
from gyre.storage import files
from gyre.types.errors import BoundaryError, ConfigError, LogDamaged
from gyre.types.outcomes import Assessed, Outcome, StepAssessed
from gyre.types.tasks import Command, Endpoint, Keep, TaskStep

LOG_FILE = "supervisor.log"
ORDERS = {signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2}
"""Signals that are orders; they wait until the supervisor can take them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Secrets:
    """What a supervisor reads from its standard input; no file holds it."""

    key: str = field(default="", repr=False)
    """The execution's own, for its harness (SPEC 4.7)."""
    token: str = field(default="", repr=False)
    """For posting facts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MonotonicClock:
    """The machine's, which all its processes share until it starts again."""

    boot: str

    def now(self) -> float:
        return time.monotonic()


class AllHeldCalls:
    """Calls that the proxy has held, and those that waited while none ran to count it."""

    def __init__(self, folder: Path, proxy: Upstream) -> None:
        self._folder = folder
        self._proxy = proxy

    @property
    def held_s(self) -> float:
        return read_proxy_totals(self._folder).held_s + self._proxy.waited_s


class SupervisorProcess:
    """Supervises one execution from where its facts end to its closure."""

    def __init__(
        self, folder: Path, order: ExecutionSpec, known: Secrets, reporter: FactReporter
    ) -> None:
        self._folder = folder
        self._order = order
        self._secrets = known
        self._reporter = reporter
        self._facts = FactsFile(folder)
        facts = [entry.fact for entry in self._facts.entries]
        self._execution = Execution(
            order.execution, order.task.id, facts, worth=lambda scores: worth(order.task, scores)
        )
        prepared = self._execution.prepared
        self._mark = secrets.token_hex(16) if prepared is None else prepared.mark
        # What the image has was put into the workspace before the first step.
        fills = not self._execution.steps
        self._proxy = Upstream(address_of(order))
        self._sandbox = agent_sandbox(order, self._mark, folder, self._proxy, fills=fills)
        self._recorder = FactRecorder(folder, self._facts, self._execution, reporter)
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        clock = MonotonicClock(boot=boot)
        self._supervisor = Supervisor(
            order,
            folder,
            self._execution,
            sandbox=self._sandbox,
            clock=clock,
            deadlines=Deadlines(
                order,
                self._execution,
                steps_of(order.task),
                clock=clock,
                calls=AllHeldCalls(folder, self._proxy),
                spent_s=last_spent_s(folder),
            ),
            recorder=self._recorder,
        )
        self._harness = CommandHarness(
            order.harness, order.variables, home=order.home, layers=order.layers
        )
        self._surplus = asyncio.Event()
        self._stopped = asyncio.Event()
        """The run is, and this execution closes when it is resumed."""

    def spent_s(self) -> float:
        """Of the overall budget, without what programs waited for a proxy: only the relay of this
        supervisor has counted that, and a later supervisor could not leave it out."""
        return self._supervisor.spent_s() - self._proxy.waited_s

    async def work(self) -> None:
        """The execution is closed and its outcome file says so, unless the run is stopped."""
        self._take_orders()
        for entry in self._facts.entries:
            self._reporter.report(entry)
        if self._execution.stage is ExecutionStage.CLOSED:
            facts.write(self._folder, self._execution.record)
            self._tidy()
            return
        await self._sandbox.kill()
        if self._execution.stage is ExecutionStage.TERMINATED:
            facts.write(self._folder, self._execution.record)
        while self._execution.terminated is None:
            if self._execution.state is not None:
                if not await self._is_assessed():
                    return
                self._supervisor.settle(has_key=bool(self._secrets.key))
            if self._execution.terminated is None:
                await self._supervisor.advance(self._mark, self._command)
        if not await self._is_assessed():
            return
        self._recorder.record(
            closing(
                self._execution.terminated,
                self._execution.assessments,
                worth=lambda: worth(self._order.task, self._execution.scores),
                is_surplus=self._surplus.is_set(),
                committed_calls=read_proxy_totals(self._folder).committed_calls,
                counts_placeholders=self._order.counts_placeholders,
            )
        )
        self._tidy()

    def close(self) -> None:
        """Its file is; nothing more is said."""
        self._facts.close()

    def _tidy(self) -> None:
        """The disk holds what the run wants to keep of it."""
        assert self._execution.closed is not None
        is_scored = self._execution.closed.outcome is Outcome.VALID
        kept: dict[Keep, bool] = {
            "all": True,
            "scored": is_scored,
            "unscored": not is_scored,
            "none": False,
        }
        keeps = kept[self._order.sandbox.keep] or self._order.task.preserve
        for workspace in self._supervisor.workspaces:
            workspace.tidy(keeps=keeps)

    def _take_orders(self) -> None:
        def surplus() -> None:
            self._surplus.set()
            self._supervisor.cancelled.set()

        def stopped() -> None:
            self._stopped.set()
            self._supervisor.cancelled.set()

        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self._supervisor.cancelled.set)
        loop.add_signal_handler(signal.SIGUSR1, surplus)
        loop.add_signal_handler(signal.SIGUSR2, stopped)
        # A handler, because children inherit it when a signal is ignored.
        loop.add_signal_handler(signal.SIGHUP, lambda: None)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ORDERS)

    def _command(self, step: TaskStep) -> Command:
        if not self._secrets.key:
            raise ConfigError("expected the execution's key on standard input, found none")
        endpoint = Endpoint(url=self._sandbox.address(self._order.url), key=self._secrets.key)
        task = replace(self._order.task, instruction=step.instruction)
        wanted = self._harness.command(task, endpoint)
        usual = environment(endpoint.url, endpoint.key)
        return replace(wanted, variables=task.variables | usual | wanted.variables)

    async def _is_assessed(self) -> bool:
        """Until it is valid or there is no further attempt, or it becomes surplus.

        False where the run is stopped before that: then it can be assessed when that is resumed.
        """
        if self._stopped.is_set():
            return False
        assessed = asyncio.create_task(self._assess())
        ends = [asyncio.create_task(event.wait()) for event in (self._surplus, self._stopped)]
        try:
            await asyncio.wait({assessed, *ends}, return_when=asyncio.FIRST_COMPLETED)
            if assessed.done():
                assessed.result()
                return True
            return self._surplus.is_set()
        finally:
            for task in (assessed, *ends):
                task.cancel()
            await asyncio.gather(assessed, *ends, return_exceptions=True)

    async def _assess(self) -> None:
        """The state that waits for it, by the rule of its step."""
        state, number = self._execution.state, self._execution.step
        if state is None or self._surplus.is_set():
            return
        step = steps_of(self._order.task)[number]
        task = replace(self._order.task, instruction=step.instruction, evaluation=step.evaluation)
        order = replace(self._order, task=task)
        workspace = self._supervisor.workspace
        sandbox = judging_sandbox(order, self._mark, workspace)
        evaluator = evaluator_for(order, sandbox, self._supervisor.folder_of(number))
        async for attempt in attempts(
            evaluator,
            step.evaluation,
            state,
            made=self._execution.assessments,
            copies=workspace.fresh,
            left_s=self._supervisor.left_s,
            least=step.least,
        ):
            if self._execution.terminated is None:
                self._recorder.record(
                    StepAssessed(
                        step=number, assessment=attempt.assessment, is_enough=attempt.is_enough
                    )
                )
            else:
                self._recorder.record(Assessed(assessment=attempt.assessment))


def warm() -> None:
    """What every supervisor needs and none changes is there before any is forked."""
    warm_sandboxes()


def run_forked(arguments: Sequence[str], secret: str) -> int:
    """The process's whole life."""
    os.umask(0o077)
    try:
        path = _order_file(arguments)
        order = read_order(path)
        known = msgspec.json.decode(secret or "{}", type=Secrets)
        adopt_orphans()
        with (
            FactReporter(order.facts_url, known.token, order.execution) as reporter,
            Heartbeat(path.parent) as beating,
        ):
            run_loop(_supervise(path.parent, order, known, reporter, beating))
    except (ConfigError, BoundaryError, LogDamaged, msgspec.MsgspecError, OSError) as error:
        sys.stderr.write(f"gyre supervise: {type(error).__name__}: {error}\n")
        return 2 if isinstance(error, ConfigError) else 1
    return 0


def main(arguments: Sequence[str]) -> int:
    """The same for a process that was not forked; secrets come over its standard input."""
    with suppress(PermissionError):
        os.setsid()
    return run_forked(arguments, sys.stdin.read())


def _order_file(arguments: Sequence[str]) -> Path:
    """The order's; the lock of its folder is held for as long as the process lives."""
    if len(arguments) != 1:
        raise ConfigError("expected one argument, the order file")
    path = Path(arguments[0]).absolute()
    files.take(path.parent)
    return path


async def _supervise(
    folder: Path, order: ExecutionSpec, known: Secrets, reporter: FactReporter, beating: Heartbeat
) -> None:
    turning = asyncio.create_task(beating.turn())
    try:
        supervision = SupervisorProcess(folder, order, known, reporter)
        try:
            beating.charge(supervision.spent_s)
            await supervision.work()
        finally:
            supervision.close()
    finally:
        turning.cancel()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
