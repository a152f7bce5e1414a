"""The evaluator contract, kept by commands that write a file and by judges that are asked."""

import asyncio
import json
import secrets

import pytest
from tests.contracts import evaluator as suite
from tests.rewards.support.judged import endpoint
from tests.waiting import PATIENCE_S, wait_until

from gyre.config.sections import JudgeConfig
from gyre.rewards.command import CommandEvaluator
from gyre.rewards.judge import Judge
from gyre.sandboxes.process import ProcessSandbox
from gyre.sandboxes.process_tree import SandboxProcesses
from gyre.types.tasks import EvaluationRule, Rubric, Task

SCRIPTS = {
    "says": 'cat work > "$GYRE_RESULTS/reward.txt"',
    "silent": ":",
    "breaks": "exit 7",
    "hangs": "setsid sleep 60",
}


class Commands:
    def __init__(self, folder):
        self.workspace, self.scratch = folder / "workspace", folder / "scratch"
        self.workspace.mkdir()
        self.scratch.mkdir()
        self._folder = folder
        self._mark = secrets.token_hex(16)

    def make(self, behaviour):
        impossible = behaviour == "impossible"
        argv = ("/no/such/program",) if impossible else ("sh", "-c", SCRIPTS[behaviour])
        return CommandEvaluator(
            EvaluationRule(argv=argv, score="reward.txt"),
            ProcessSandbox(self._mark, home=self.scratch / "home"),
            variables={},
            folder=self._folder,
            output_bytes=1000,
        )

    def num_alive(self):
        return len(SandboxProcesses(self._mark, owns_descendants=False).alive())

    num_left = num_alive


@pytest.mark.parametrize("promise", suite.EVERY_EVALUATOR, ids=lambda promise: promise.__name__)
def test_commands_keep_the_promise_that(promise, tmp_path):
    async def keep():
        async with asyncio.timeout(PATIENCE_S):
            await promise(Commands(tmp_path))

    asyncio.run(keep())


class Judges:
    """Judges whose endpoint says what the workspace holds."""

    def __init__(self, folder, one):
        self.workspace, self.scratch = folder / "workspace", folder / "scratch"
        self.workspace.mkdir()
        self.scratch.mkdir()
        self._folder = folder
        self._endpoint = one

    def make(self, behaviour):
        def says(body):
            return json.dumps({"score": (self.workspace / "work").read_text()})

        self._endpoint.answer = {
            "says": says,
            "silent": lambda body: "hm",
            "breaks": lambda body: (503, "later"),
            "hangs": lambda body: None,
            "impossible": lambda body: (401, "no key"),
        }[behaviour]
        evaluation = EvaluationRule(rubric=Rubric(text="Is it tidy?"))
        task = Task(id="t", instruction="Tidy up.", files=None, evaluation=evaluation)
        settings = JudgeConfig(url=self._endpoint.url, model="m")
        return Judge(task, evaluation, settings, key=None, folder=self._folder)

    def num_alive(self):
        """Its connections."""
        return self._endpoint.num_open

    def num_left(self):
        """The other end sees one close a moment later."""
        wait_until(lambda: not self._endpoint.num_open, "the end of its connections")
        return 0


@pytest.mark.parametrize("promise", suite.EVERY_EVALUATOR, ids=lambda promise: promise.__name__)
def test_judges_keep_the_promise_that(promise, tmp_path, monkeypatch):
    monkeypatch.setattr("gyre.rewards.judge.PAUSE_S", 0.01)

    async def keep(one):
        async with asyncio.timeout(PATIENCE_S):
            await promise(Judges(tmp_path, one))

    with endpoint(lambda body: None) as one:
        asyncio.run(keep(one))
