"""The evaluator contract, kept by commands that write a file."""

import asyncio
import secrets

import pytest
from tests.contracts import evaluator as suite

from gyre.backends.evaluators.command import CommandEvaluator
from gyre.backends.sandboxes.members import Members
from gyre.backends.sandboxes.process import ProcessSandbox
from gyre.words.tasks import Evaluation

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
            Evaluation(argv=argv, score="reward.txt"),
            ProcessSandbox(self._mark, home=self.scratch / "home"),
            variables={},
            folder=self._folder,
            output_bytes=1000,
        )

    def num_alive(self):
        return len(Members(self._mark, owns_descendants=False).alive())


@pytest.mark.parametrize("promise", suite.EVERY_EVALUATOR, ids=lambda promise: promise.__name__)
def test_commands_keep_the_promise_that(promise, tmp_path):
    async def keep():
        async with asyncio.timeout(suite.PATIENCE_S):
            await promise(Commands(tmp_path))

    asyncio.run(keep())
