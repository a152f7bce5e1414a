"""A command that judges a copy of the workspace, and says its score in a file or by its status."""

import asyncio
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from gyre.storage import safe_dir
from gyre.types.errors import EvaluatorError, SandboxError, wrap_errors
from gyre.types.outcomes import EvaluatorAnswer, Finding, NoAnswer
from gyre.types.places import Sandbox
from gyre.types.tasks import Command, EvaluationRule

RESULTS = "GYRE_RESULTS"
"""Variable with the folder that a score file is written to; the agent never saw it."""
FILES = "GYRE_EVALUATION"
"""Variable with a copy of the evaluation's own files."""
OUTPUT_FILE = "evaluation.txt"
FILES_OF = {"reward": ("reward.json", "reward.txt")}
"""Scores that stand in the first of several files that holds something."""
MOST_BYTES = 2**24
"""Of a file with a score; reports of tests are long."""
SAID_BY_STATUS = {0: "1", 1: "0"}
"""Any other status is a failure of the evaluator, because shells and kernels use them."""


class CommandEvaluator:
    """One task's evaluation, run in a sandbox; `folder` gets what it prints."""

    def __init__(
        self,
        evaluation: EvaluationRule,
        sandbox: Sandbox,
        *,
        variables: Mapping[str, str],
        folder: Path,
        output_bytes: int,
    ) -> None:
        self._evaluation = evaluation
        self._sandbox = sandbox
        self._variables = dict(variables)
        self._folder = folder
        self._output_bytes = output_bytes

    @property
    def name(self) -> str:
        return f"command {self._evaluation.argv[0]}"

    async def assess(self, workspace: str, scratch: str, *, within_s: float) -> Finding:
        results, files = Path(scratch) / "results", Path(scratch) / "files"
        with wrap_errors(EvaluatorError, "files of the evaluation", (OSError, shutil.Error)):
            results.mkdir()
            for given in (self._evaluation.files, self._evaluation.files_over):
                if given is not None:
                    shutil.copytree(given, files, symlinks=True, dirs_exist_ok=True)
        own = {RESULTS: str(results), FILES: str(files)}
        variables = self._variables | self._evaluation.variables | own
        command = Command(argv=self._evaluation.argv, variables=variables)
        try:
            status = await self._run(command, workspace, within_s)
        except SandboxError as error:
            raise EvaluatorError(str(error), retryable=error.retryable) from error
        if status is None:
            return NoAnswer(reason=f"no answer within {within_s:.3g} s")
        return self._finding(status, results)

    async def _run(self, command: Command, workspace: str, within_s: float) -> int | None:
        """Its exit status, with nothing of it left running; None if the time was over."""
        try:
            async with asyncio.timeout(within_s):
                await self._sandbox.prepare(workspace)
                output = str(self._folder / OUTPUT_FILE)
                await self._sandbox.start(command, output=output, most_bytes=self._output_bytes)
                return await self._sandbox.wait()
        except TimeoutError:
            return None
        finally:
            await self._sandbox.kill()

    def _finding(self, status: int, results: Path) -> Finding:
        if self._evaluation.score == "exit-status":
            if status not in SAID_BY_STATUS:
                raise EvaluatorError(f"{self.name} ended with status {status}; 0 and 1 are scores")
            return EvaluatorAnswer(text=SAID_BY_STATUS[status])
        if status < 0:
            raise EvaluatorError(f"{self.name} was ended by signal {-status}")
        names = FILES_OF.get(self._evaluation.score, (self._evaluation.score,))
        for name in names:
            try:
                text = _text(results, name)
            except (OSError, UnicodeDecodeError) as error:
                return NoAnswer(reason=f"{name} cannot be read: {error}")
            if text.strip():
                return EvaluatorAnswer(text=text, evidence=self._evidence(results))
        missing = " or ".join(names)
        if status > 0:
            raise EvaluatorError(f"{self.name} ended with status {status} and left no {missing}")
        return NoAnswer(reason=f"{missing} is missing or empty")

    def _evidence(self, results: Path) -> tuple[str, ...]:
        """The files asked for that are there and hold something."""
        return tuple(name for name in self._evaluation.evidence if _size(results, name) > 0)


def _size(folder: Path, name: str) -> int:
    """Of a file in the folder; 0 of what is none, as a link, which could lead to the agent's."""
    try:
        file = safe_dir.opened(folder, name)
    except (OSError, ValueError):
        return 0
    try:
        return os.fstat(file).st_size
    finally:
        os.close(file)


def _text(folder: Path, name: str) -> str:
    """Nothing of what is no file."""
    size = _size(folder, name)
    if size > MOST_BYTES:
        raise OSError(f"expected at most {MOST_BYTES} bytes")
    if size == 0:
        return ""
    with os.fdopen(safe_dir.opened(folder, name), encoding="utf-8") as file:
        return file.read()
