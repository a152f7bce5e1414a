"""Executions of small shell scripts under real supervisors, for tests to start and look at."""

import json
import os
import signal
import subprocess
import sys
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.controller.support import moved_clock
from tests.waiting import PATIENCE_S, wait_until

from gyre.rollout import facts
from gyre.rollout import facts as outcome
from gyre.rollout.main import LOG_FILE, ORDERS, Secrets
from gyre.rollout.spec import ORDER_FILE, ExecutionSpec, write_order
from gyre.storage.files import is_taken
from gyre.types.outcomes import Launched
from gyre.types.tasks import EvaluationRule, Task

COUNT_LINES = 'echo "0.$(wc -l < work)" > $GYRE_RESULTS/reward.txt'
"""An evaluation that scores how far the work has come."""


def evaluation(script, **changed):
    settings = {"score": "reward.txt", "attempts": 2, "retry_s": 0.01, "attempt_s": PATIENCE_S}
    return EvaluationRule(argv=("sh", "-c", script), **(settings | changed))


def order(harness, *, judge=None, files=None, variables=None, **changed):
    """Of a harness that is a shell script, or arguments."""
    argv = ("sh", "-c", harness) if isinstance(harness, str) else tuple(harness)
    task = Task(
        id="count",
        instruction="count to two",
        files=files,
        evaluation=judge or evaluation(COUNT_LINES),
        variables=variables or {},
    )
    settings = {"agent_s": PATIENCE_S, "overall_s": 2 * PATIENCE_S}
    return ExecutionSpec(
        execution="e1",
        task=task,
        url="http://127.0.0.1:9/exec/e1",
        harness=argv,
        variables={},
        **(settings | changed),
    )


@dataclass
class Supervised:
    """An execution in a folder, and the process that looks after it."""

    folder: Path
    process: subprocess.Popen

    @property
    def work(self):
        return self.folder / "workspace" / "work"

    @property
    def facts(self):
        return [entry.fact for entry in facts.read(self.folder)]

    def signal(self, number):
        os.kill(self.process.pid, number)

    def wait_for_work(self):
        """The harness has done something."""
        wait_until(lambda: self.work.exists() and self.work.read_text(), "work")

    def wait_for_fact(self, kind):
        wait_until(lambda: any(isinstance(fact, kind) for fact in self.facts), kind.__name__)

    def pass_time(self):
        """PATIENCE_S are over, which is all that an agent is given; of one that does its work."""
        self.signal(signal.SIGRTMIN)

    def end(self):
        """The record of the closed execution."""
        status = self.process.wait(PATIENCE_S)
        assert (0, "") == (status, (self.folder / "supervisor.log").read_text())
        return outcome.read_outcome(self.folder)

    def kill_and_resume(self):
        """As after SIGKILL; the new supervisor gets no key, because nothing is launched twice."""
        self.process.kill()
        self.process.wait(PATIENCE_S)
        assert not is_taken(self.folder)
        again = any(isinstance(fact, Launched) for fact in self.facts)
        self.process = resume(self.folder, Secrets() if again else Secrets(key="k"))


def start(folder, wanted, told):
    """A supervisor for a new execution, which lives on when this process dies."""
    write_order(folder, wanted)
    return resume(folder, told)


def resume(folder, told):
    """A supervisor for an execution; orders to it wait until it can take them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ORDERS)
    try:
        with (folder / LOG_FILE).open("ab") as log:
            child = subprocess.Popen(
                [sys.executable, moved_clock.__file__, str(PATIENCE_S), str(folder / ORDER_FILE)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    # One that has ended already says in its log why.
    with suppress(BrokenPipeError), child.stdin as pipe:
        pipe.write(json.dumps(asdict(told)).encode())
    return child


@contextmanager
def supervised(folder, wanted):
    """Started; at the end of the test the supervisor and what it runs are gone."""
    one = Supervised(folder, start(folder, wanted, Secrets(key="gyre-secret", token="t")))
    try:
        yield one
    finally:
        if one.process.poll() is None:
            one.signal(signal.SIGUSR1)
            one.process.wait(PATIENCE_S)


def is_alive(pid):
    try:
        return " Z " not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2][:4]
    except OSError:
        return False
