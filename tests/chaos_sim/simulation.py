"""One seed: a whole run of the real controller under made-up time, with its faults."""

import asyncio
import gc
import os
import shutil
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Sequence
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from unittest.mock import patch

from tests.chaos_sim import faults as breaking
from tests.chaos_sim.agents import Supervising
from tests.chaos_sim.books import LiveBooks, invariant_of
from tests.chaos_sim.cells import Cells
from tests.chaos_sim.controllers import Live, SimBirths, SimSocket, is_controllers, told
from tests.chaos_sim.ends import check_journal, check_logs, check_memory
from tests.chaos_sim.faults import Faults
from tests.chaos_sim.loop import NODE, Stuck, VirtualLoop
from tests.chaos_sim.machine import Machine
from tests.chaos_sim.network import Http, Network
from tests.chaos_sim.proxies import Proxies
from tests.chaos_sim.scenes import scene
from tests.chaos_sim.watch import Watch

from gyre.cluster.fork_client import ForkClient
from gyre.cluster.process import SpawnedProcess
from gyre.controller import run_dir
from gyre.controller.cells import processes
from gyre.controller.controller import JOURNAL_EVENTS
from gyre.controller.run_loop import RunLoop
from gyre.journal.journal import Journal, read
from gyre.proxy import main as proxying
from gyre.rollout import main as supervising
from gyre.rollout.facts import FactsFile
from gyre.scheduler.messages import (
    CellRecovered,
    EngineReturned,
    ExecutionClosed,
    GroupAssigned,
    Publish,
    Published,
    StepTaken,
    StopReason,
)
from gyre.scheduler.replay import EVENTS
from gyre.scheduler.scheduler import Scheduler
from gyre.types.errors import LogDamaged
from gyre.types.outcomes import Outcome
from gyre.types.run_events import ExecutionRelaunched, GroupDrawn, RewardGiven

MOST_S = 900.0
"""Made-up seconds after which a run that goes on has come to a stand."""
ALARMS = ("times in vain", "the proxy ended")
"""What a run says that was struck too often in a short time."""
MOST_ALARMS = 3
MEMORY = Path("/dev/shm")


@dataclass(slots=True)
class Result:
    """What became of one seed."""

    seed: int
    reason: str
    violations: list[str]
    faults: dict[str, int]
    """How many of each kind hit something."""
    num_events: int
    num_steps: int
    seconds: float
    """Made-up ones."""
    trace: Sequence[str] = field(repr=False)
    """All that happened, a line each."""


class Simulation:
    """Everything that one seed consists of."""

    def __init__(self, seed, folder, kinds=breaking.KINDS, shards=1):
        self.seed = seed
        self.folder = folder
        (folder / "memory").mkdir()
        self.scene = scene(seed, folder, shards)
        self.lines = []
        self.loop = VirtualLoop(rng=Random(f"{seed}/loop"), most_s=MOST_S)
        self.machine = Machine(self.loop, Random(f"{seed}/machine"), folder, self.trace)
        self.network = Network(self.loop, Random(f"{seed}/network"))
        shape = self.scene.run.shape
        self.watch = Watch(
            Random(f"{seed}/watch"),
            self.trace,
            batch_executions=shape.groups_per_batch * shape.executions_per_group,
            trouble=self.scene.trouble,
        )
        self.cells = Cells(
            self.machine,
            self.network,
            self.watch,
            Random(f"{seed}/cells"),
            write_s=self.scene.write_s,
        )
        self.proxies = Proxies(
            self.machine, self.network, self.cells, self.watch, Random(f"{seed}/proxy")
        )
        self.supervising = Supervising(
            self.machine, self.network, self.watch, Random(f"{seed}/agents")
        )
        self.books = LiveBooks(shape)
        self.faults = Faults(self, Random(f"{seed}/faults"), kinds)
        self.watch.is_full = partial(self.faults.disk.is_full_for, "logs")
        self.reason = "none"
        self.decided = []
        self.over = self.loop.create_future()
        self.watch.stop = self.finish
        self.loop.uncaught = lambda error: self.watch.wrong("I10", f"nobody caught {told(error)}")
        self.started = asyncio.Event()
        self.num_alarms = 0
        self._num_heard = 0
        self._drawn = {}
        self._scores = {}
        self._assigned = {}

    def trace(self, line):
        # The folder has another name every time.
        line = line.replace(str(self.folder), "")
        self.lines.append(f"{self.loop.time():12.6f} {line}")

    # The run

    def run(self):
        with ExitStack() as stack:
            self._replace_surroundings(stack)
            try:
                self.loop.run_until_complete(self._work())
            except Stuck as error:
                self.watch.wrong("I10", str(error))
            self._check_end()
            self.trace(f"ended: {self.reason}")
            self._close()
            self.loop.close()

    def finish(self, reason="violation"):
        if not self.over.done():
            self.reason = reason
            self.over.set_result(None)

    async def _work(self):
        self.start_controller()
        self.loop.create_task(self.faults.work())
        await self.over

    def start_controller(self, **how):
        live = Live(self, how)
        self.controller = self.machine.start(
            "controller", live.live, files=is_controllers, lasts=True
        )

    def may_come_back(self, error):
        """Whether it is an alarm by name, after which a run can be resumed (I10)."""
        text = told(error)
        if self.faults.disk.was_refused(text):
            return True
        self.num_alarms += 1
        return any(one in text for one in ALARMS) and self.num_alarms <= MOST_ALARMS

    def come_back(self, delay_s):
        """Somebody resumes the run."""
        self.machine.later(delay_s, self._resume)

    def _resume(self):
        self.trace("resume")
        try:
            self._catch_up()
        except LogDamaged as error:
            self.watch.wrong("SPEC 10", str(error))
        self.start_controller(resumes=True)

    def _catch_up(self):
        """What the dead controller wrote down and did not live to decide on is decided again."""
        facts = read(self.folder / "run" / "journal", kinds=JOURNAL_EVENTS).facts(JOURNAL_EVENTS)
        scheduler = Scheduler(self.scene.run.shape)
        for number, (now, fact) in enumerate(facts):
            orders = scheduler.handle(fact, now) if isinstance(fact, EVENTS) else ()
            if number < self._num_heard:
                continue
            if isinstance(fact, EVENTS):
                self.note_decided(scheduler, now, fact, orders)
            self.heard(now, fact)

    def _replace_surroundings(self, stack):
        """Processes, sockets and time are simulated; everything else is real."""

        def put(where, name, value):
            stack.enter_context(patch.object(where, name, value))

        put(ForkClient, "open", self._open_births)
        put(SpawnedProcess, "start", self._start_process)
        put(processes, "aiohttp", Http(self.network))
        put(run_dir, "MEMORY", self.folder / "memory")
        alarm = {"alarm": lambda text: self.trace(f"alarm: {text}")}
        stack.enter_context(patch.dict(RunLoop.__init__.__kwdefaults__, alarm))
        put(Journal, "commit", self.faults.at_journal.commit(Journal.commit))
        put(os, "pwrite", self.faults.disk.pwrite)
        put(os, "getpid", self.machine.getpid)
        put(os, "kill", self.machine.send)
        put(os, "killpg", self.machine.send)
        put(time, "time", lambda: 1.8e9 + self.loop.time() + self.faults.clock_s)
        put(time, "monotonic", self.loop.time)
        put(signal, "pthread_sigmask", lambda how, numbers: set())
        put(FactsFile, "append", self.supervising.append(FactsFile.append))
        for known, value in self.proxies.surroundings().items():
            put(proxying, known, value)
        for known, value in self.supervising.surroundings().items():
            put(supervising, known, value)
        everywhere = {
            "listener": lambda host, port, **how: SimSocket(port or self.network.port()),
            "serving": self._serving,
            "holds_log": self.machine.lives,
            "perf_counter": self.loop.time,
        }
        for name, module in sorted(sys.modules.items()):
            if name.startswith("gyre."):
                for known in everywhere.keys() & vars(module).keys():
                    put(module, known, everywhere[known])

    async def _open_births(self, module, log, **where):
        return SimBirths(self, module)

    async def _start_process(self, name, arguments, log):
        return self.proxies.start(name, arguments, log)

    @asynccontextmanager
    async def _serving(self, app, on):
        self.network.listen(f"127.0.0.1:{on.number}", NODE.get(), app)
        yield

    def _check_end(self):
        """What a run that finished has left on the disk agrees with what it did."""
        if self.reason != StopReason.FINISHED.value:
            return
        try:
            check_journal(self.folder / "run", self.scene.run.shape, self.decided)
            check_logs(self.folder / "run", self.watch.answers)
            check_memory(self.folder / "memory")
        except AssertionError as error:
            self.watch.wrong("SPEC 10", str(error))

    def _close(self):
        """What dead processes left is closed, in whatever state it is; nobody sees how."""
        self.trace = lambda line: None
        self.machine.trace = self.trace
        for process in list(self.machine.running.values()):
            self.machine.kill(process)
        # Else what is closed would begin tasks at a loop that is made for them and never runs.
        self.loop.set_task_factory(_refused)
        asyncio._set_running_loop(self.loop)
        with patch.object(sys, "unraisablehook", lambda _: None), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for node in self.machine.graves:
                for task in node.tasks:
                    task._log_destroy_pending = False
                    with suppress(BaseException):
                        task.get_coro().close()
                node.tasks.clear()
            gc.collect()
        asyncio._set_running_loop(None)
        self.machine.files.close()

    # What is heard

    def heard(self, now, fact):
        """Every fact of the journal, once it is there."""
        self._num_heard += 1
        match fact:
            case GroupDrawn(group=group, executions=executions):
                self._drawn[group] = list(executions)
            case ExecutionRelaunched(group=group, member=member, execution=execution):
                self.watch.relaunched(self._drawn[group][member], execution)
                self._drawn[group][member] = execution
            case RewardGiven(execution=execution, score=score):
                if execution in self._scores:
                    self.watch.wrong("I7", f"{execution} is rewarded twice")
                self._scores[execution] = score
            case GroupAssigned(group=group, step=step):
                self._assigned.setdefault(step, []).append(group)
            case StepTaken(step=step):
                self.watch.batch(step, self._apart(step))
            case ExecutionClosed(group=group, member=member, outcome=outcome):
                execution = self._drawn[group][member]
                score = self._scores.get(execution)
                if outcome is not Outcome.SURPLUS:
                    self.watch.rewarded(execution, outcome, score)
            case _:
                pass

    def _apart(self, step):
        """Executions of the step's groups whose advantage is not zero."""
        found = []
        for group in self._assigned[step]:
            counted = self.books.counted(group)
            names = [self._drawn[group][member] for member in counted]
            scores = [self._scores.get(one) or 0.0 for one in names]
            if self.books.is_void(group) or len(set(scores)) < 2:
                continue
            mean = sum(scores) / len(scores)
            found += [one for one, score in zip(names, scores, strict=True) if score != mean]
        return found

    def _check_versions(self, event, orders):
        """Engines that are said to have a version have it (I9)."""
        match event:
            case Published(version=version, silent=silent):
                order, since_s = self._publish
                said = set(order.engines) - set(silent) if order.version == version else ()
            case (
                CellRecovered(cell=engine, version=version)
                | EngineReturned(engine=engine, version=version)
            ):
                said, since_s = {engine}, self.loop.time()
            case _:
                said = ()
        for engine in said:
            self.watch.has_version(self.cells.by_number[engine], version, since_s)
        for one in orders:
            if isinstance(one, Publish):
                self._publish = one, self.loop.time()

    def note_decided(self, scheduler, now, event, orders):
        self.started.set()
        self.trace(f"{event}")
        for one in orders:
            self.trace(f"  -> {one}")
        self.decided.append((now, event, tuple(orders)))
        self._check_versions(event, orders)
        try:
            self.books.decided(scheduler, now, event, orders)
        except AssertionError as error:
            said = str(error).splitlines()[0] if str(error) else "the books do not agree"
            self.watch.wrong(invariant_of(error), f"{said} after {event}")
            raise


def _refused(loop, coro, **more):
    """In place of a task of somebody who is dead."""
    coro.close()
    raise RuntimeError("nothing is begun any more")


def simulate(seed, kinds=breaking.KINDS, *, shards=1):
    """The result of one seed; nothing of it is left on the disk."""
    place = MEMORY if MEMORY.is_dir() else None
    folder = Path(tempfile.mkdtemp(prefix="gyre-chaos-", dir=place))
    # What the seed before has left goes first, because what is frozen is never collected.
    gc.collect()
    gc.freeze()
    try:
        simulation = Simulation(seed, folder, kinds, shards)
        simulation.run()
        return Result(
            seed=seed,
            reason=simulation.reason,
            violations=list(simulation.watch.violations),
            faults=dict(sorted(simulation.faults.hits.items())),
            num_events=simulation.books.num_events,
            num_steps=simulation.loop.num_steps,
            seconds=simulation.loop.time(),
            trace=simulation.lines,
        )
    finally:
        shutil.rmtree(folder, ignore_errors=True)
