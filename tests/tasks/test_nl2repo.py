"""NL2RepoBench's folders, and the score that their tests come to."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from gyre.rewards.score import score_of
from gyre.tasks.nl2repo import Nl2RepoTasks
from gyre.types.errors import TaskError
from gyre.types.outcomes import EvaluatorAnswer

HIDDEN = """import adder
import pytest

@pytest.mark.parametrize("n", range(4))
def test_adds(n):
    assert adder.add(n, n) == 2 * n
"""


def written(folder, *, count="5", commands=("true", "pytest tests"), files=("tests",)):
    """A checkout with one task, and the tests that its image would hold."""
    task = folder / "test_files" / "adder"
    task.mkdir(parents=True)
    (task / "start.md").write_text("# adder\n")
    (task / "test_case_count.txt").write_text(count)
    (task / "test_commands.json").write_text(json.dumps(commands))
    (task / "test_files.json").write_text(json.dumps(files))
    hidden = folder / "hidden" / "adder" / "tests"
    hidden.mkdir(parents=True)
    (hidden / "test_add.py").write_text(HIDDEN)
    return folder


def opened(folder):
    return Nl2RepoTasks(folder, tests=folder / "hidden")


def test_a_task_is_its_specification_and_a_fixed_number_of_tests(tmp_path):
    task = opened(written(tmp_path)).get(0)

    assert "adder" == task.id
    assert task.instruction.endswith("# adder\n")
    assert ("junit.xml", 5) == (task.evaluation.score, task.evaluation.tests.count)
    assert None is task.files


def score(task, workspace, results):
    """What the task's own script leaves, as it would be scored."""
    python = Path(sys.executable).parent
    subprocess.run(
        task.evaluation.argv,
        cwd=workspace,
        env={
            "PATH": f"{python}:/usr/bin:/bin",
            "GYRE_RESULTS": str(results),
            "GYRE_EVALUATION": task.evaluation.files,
        },
        check=True,
        capture_output=True,
    )
    return score_of(EvaluatorAnswer(text=(results / "junit.xml").read_text()), task.evaluation)


SPOOF = "def pytest_terminal_summary(terminalreporter):\n    print('999 passed in 0.1s')\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "wanted"),
    [
        ("def add(a, b): return a + b", 0.8),
        ("def add(a, b): return 0", 0.2),
        ("print('5 passed in 0.01s')\ndef add(a, b): return None", 0.0),
    ],
)
def test_the_score_is_the_part_of_the_fixed_number_that_passes(program, wanted, tmp_path):
    """Four hidden tests of five that count; what the agent tests itself counts for nothing."""
    workspace, results = tmp_path / "workspace", tmp_path / "results"
    (workspace / "tests").mkdir(parents=True)
    results.mkdir()
    (workspace / "adder.py").write_text(program)
    (workspace / "conftest.py").write_text(SPOOF)
    (workspace / "tests" / "test_own.py").write_text("def test_me(): pass\n" * 9)

    assert wanted == score(opened(written(tmp_path)).get(0), workspace, results)


@pytest.mark.parametrize(
    ("changed", "complaint"),
    [
        ({"count": "0"}, "expected the number of tests"),
        ({"count": "many"}, "expected the number of tests"),
        ({"commands": ["make test"]}, "a command that runs pytest"),
        ({"commands": {"a": 1}}, "expected a list of texts"),
        ({"files": ["../../etc"]}, "expected a path inside"),
    ],
)
def test_a_mistake_is_named_with_its_file(changed, complaint, tmp_path):
    with pytest.raises(TaskError, match=complaint):
        opened(written(tmp_path, **changed))


def test_tests_that_are_missing_are_named(tmp_path):
    with pytest.raises(TaskError, match="tests of adder"):
        Nl2RepoTasks(written(tmp_path), tests=tmp_path / "none")
