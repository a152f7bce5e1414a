"""The tasks in examples/tasks: solved they score 1, untouched nothing, half done in between."""

import asyncio
import os
import secrets
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from tests.controller.support.supervised import order, supervised
from tests.waiting import PATIENCE_S, patience, wait_until

from gyre.rewards.assessment import assessment
from gyre.rewards.command import CommandEvaluator
from gyre.sandboxes.process import ProcessSandbox
from gyre.tasks.harbor import HarborTasks
from gyre.types.outcomes import Ending, Outcome, State, Status

FOLDER = Path(__file__).parents[2] / "examples" / "tasks"
SOURCE = HarborTasks(FOLDER)
TASKS = [SOURCE.get(index) for index in range(len(SOURCE))]
every_task = pytest.mark.parametrize(
    "task", [task for task in TASKS if not task.steps], ids=lambda task: task.id
)
"""Those in one step; tests/export/test_steps.py has the others done step by step."""


@pytest.fixture(autouse=True)
def _same_python(monkeypatch):
    """Scripts find this interpreter, and no wrapper that looks for one at every start."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    monkeypatch.setenv("PATH", path)


def begun(task, folder):
    """A workspace as an agent finds it."""
    workspace = folder / "workspace"
    if task.files is None:
        workspace.mkdir()
    else:
        shutil.copytree(task.files, workspace)
    return workspace


def worked(task, workspace, script):
    """The workspace after one of the task's own scripts."""
    subprocess.run(
        ["bash", f"{task.solution}/{script}"], cwd=workspace, check=True, capture_output=True
    )


def judged_within(limit_s, files, folder):
    """A copy of the files, whose judge waits so long for each program that it runs."""
    shutil.copytree(files, folder)
    frames = list(folder.rglob("grading.py"))
    assert frames
    for frame in frames:
        assert "\nLIMIT_S = 5\n" in frame.read_text()
        frame.write_text(frame.read_text().replace("\nLIMIT_S = 5\n", f"\nLIMIT_S = {limit_s}\n"))
    return folder


def assessed(task, workspace, limit_s):
    scratch = workspace.parent / "scratch"
    scratch.mkdir()
    files = judged_within(limit_s, task.evaluation.files, workspace.parent / "judge")
    evaluator = CommandEvaluator(
        replace(task.evaluation, files=str(files)),
        ProcessSandbox(secrets.token_hex(16), home=workspace.parent / "home"),
        variables=task.variables,
        folder=workspace.parent,
        output_bytes=10_000,
    )
    found = asyncio.run(evaluator.assess(str(workspace), str(scratch), within_s=PATIENCE_S))
    state = State(folder=str(workspace), reference="-")
    return assessment(found, task.evaluation, state, evaluator="test", attempt=1)


WRONG_S = patience(5.0)
"""How long the judge waits for a program of work that is not done, which may never end."""


def score(task, workspace, limit_s=PATIENCE_S):
    found = assessed(task, workspace, limit_s)

    assert (Status.VALID, None) == (found.status, found.reason)
    return found.score


@pytest.mark.slow
@every_task
def test_a_solution_scores_everything(task, tmp_path):
    workspace = begun(task, tmp_path)
    worked(task, workspace, "solve.sh")

    assert 1.0 == score(task, workspace)


@pytest.mark.slow
@every_task
def test_an_untouched_workspace_scores_nothing(task, tmp_path):
    assert 0.0 == score(task, begun(task, tmp_path), WRONG_S)


@pytest.mark.slow
@every_task
def test_half_of_the_work_scores_in_between(task, tmp_path):
    workspace = begun(task, tmp_path)
    worked(task, workspace, "partial.sh")

    assert 0.0 < score(task, workspace, WRONG_S) < 1.0


SPOOFS = {
    "prints what a score looks like": "print('{\"reward\": 1.0}'); print('11 passed')",
    "ends before it answers": "import os; os._exit(0)",
    "never ends": "while True: pass",
    "leaves its own score": (
        "import os, pathlib\n"
        "for name in ('GYRE_RESULTS', 'GYRE_EVALUATION'):\n"
        "    if name in os.environ:\n"
        "        pathlib.Path(os.environ[name], 'reward.json').write_text('1.0')\n"
        "pathlib.Path('reward.json').write_text('{\"reward\": 1.0}')"
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("does", SPOOFS)
def test_a_program_cannot_say_its_own_score(does, tmp_path):
    task = next(one for one in TASKS if one.id == "gyre/fix-search")
    workspace = begun(task, tmp_path)
    (workspace / "search.py").write_text(SPOOFS[does])
    # One that never ends is waited for for a moment only.
    limit_s = 0.2 if does == "never ends" else PATIENCE_S

    assert 0.0 == score(task, workspace, limit_s)


@pytest.mark.slow
def test_what_worked_before_must_still_work(tmp_path):
    task = next(one for one in TASKS if one.id == "gyre/fix-inventory")
    workspace = begun(task, tmp_path)
    worked(task, workspace, "solve.sh")
    program = workspace / "inventory.py"
    program.write_text(program.read_text().replace("expected add", "wanted add"))

    assert "kept" == task.evaluation.gate
    assert 0.0 == score(task, workspace)


def test_there_are_enough_of_every_level_and_kind():
    assert len(TASKS) >= 20
    assert {"1", "2", "3", "4"} == {task.metadata["level"] for task in TASKS}
    assert {"files", "shell", "fix", "build"} == {task.metadata["kind"] for task in TASKS}


def test_no_agent_sees_what_judges_it():
    for task in TASKS:
        names = set() if task.files is None else {one.name for one in Path(task.files).rglob("*")}

        assert not names & {"tests", "solution", "test.sh", "check.py", "grading.py", "solve.sh"}
        assert task.needs.portable


def test_every_task_is_graded_by_the_same_frame():
    frames = {path.read_text() for path in FOLDER.glob("**/tests/grading.py")}
    scripts = {path.read_text() for path in FOLDER.glob("**/tests/test.sh")}

    assert (1, 1) == (len(frames), len(scripts))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "ending", "wanted"),
    [
        ("bash $SOLUTION/solve.sh", Ending.COMPLETED, 1.0),
        ("bash $SOLUTION/partial.sh; touch $DONE; sleep 600", Ending.TIMED_OUT, 0.5),
    ],
)
def test_a_supervisor_has_it_judged_however_it_ends(script, ending, wanted, tmp_path):
    """SPEC 6.1: an agent whose time is over gets what its half of the work is worth."""
    task = next(one for one in TASKS if one.id == "gyre/rename-photos")
    done = tmp_path / "done"
    files = judged_within(PATIENCE_S, task.evaluation.files, tmp_path / "judge")
    judge = replace(task.evaluation, files=str(files), attempt_s=PATIENCE_S)
    variables = {"SOLUTION": task.solution, "DONE": str(done)}
    task = replace(task, variables=variables, evaluation=judge)
    with supervised(tmp_path / "e1", replace(order(script), task=task)) as one:
        if ending is Ending.TIMED_OUT:
            wait_until(done.exists, "half of the work")
            one.pass_time()
        record = one.end()

    assert (ending, Outcome.VALID) == (record.terminated.ending, record.closed.outcome)
    assert wanted == record.closed.score
