"""A command as an evaluator: where its score comes from, and where it does not."""

import asyncio
import secrets
import sys
import tomllib
from pathlib import Path

import pytest

from gyre.rewards.command import CommandEvaluator
from gyre.rewards.score import score_of
from gyre.sandboxes.process import ProcessSandbox
from gyre.types.errors import EvaluatorError
from gyre.types.outcomes import EvaluatorAnswer, NoAnswer
from gyre.types.tasks import CountedTests, EvaluationRule


def assess(folder, script, **rule):
    workspace, scratch = folder / "workspace", folder / "scratch"
    workspace.mkdir(exist_ok=True)
    scratch.mkdir()
    evaluator = CommandEvaluator(
        EvaluationRule(argv=("sh", "-c", script), **{"score": "reward.txt"} | rule),
        ProcessSandbox(secrets.token_hex(16), home=scratch / "home"),
        variables={"LEVEL": "3"},
        folder=folder,
        output_bytes=1000,
    )
    return asyncio.run(evaluator.assess(str(workspace), str(scratch), within_s=180.0))


@pytest.mark.parametrize("score", ["reward.txt", "reward.json"])
def test_the_file_that_is_named_is_read(score, tmp_path):
    script = f"cd $GYRE_RESULTS; echo 1 > reward.txt; echo 1 > reward.json; echo $LEVEL > {score}"

    assert EvaluatorAnswer(text="3\n") == assess(tmp_path, script, score=score)


@pytest.mark.parametrize(("status", "said"), [(0, "1"), (1, "0")])
def test_the_exit_status_is_a_score_where_it_is_asked_for(status, said, tmp_path):
    assert EvaluatorAnswer(text=said) == assess(tmp_path, f"exit {status}", score="exit-status")


@pytest.mark.parametrize("script", ["exit 2", "exit 127", "kill -9 $$"])
def test_another_status_is_a_failure_and_no_score(script, tmp_path):
    with pytest.raises(EvaluatorError):
        assess(tmp_path, script, score="exit-status")


def test_a_score_that_was_written_counts_whatever_the_status(tmp_path):
    assert EvaluatorAnswer(text="0\n") == assess(
        tmp_path, "echo 0 > $GYRE_RESULTS/reward.txt; exit 1"
    )


def test_a_score_of_a_command_that_was_killed_does_not_count(tmp_path):
    with pytest.raises(EvaluatorError, match="ended by signal 9"):
        assess(tmp_path, "echo 1 > $GYRE_RESULTS/reward.txt; kill -9 $$")


def test_what_the_agent_wrote_is_no_score(tmp_path):
    (tmp_path / "workspace").mkdir()
    (tmp_path / "workspace" / "reward.txt").write_text("1")

    assert isinstance(assess(tmp_path, ":"), NoAnswer)


def test_a_link_to_what_the_agent_wrote_is_no_score(tmp_path):
    (tmp_path / "workspace").mkdir()
    (tmp_path / "workspace" / "mine").write_text("1")

    assert isinstance(assess(tmp_path, "ln -s $PWD/mine $GYRE_RESULTS/reward.txt"), NoAnswer)


def test_what_is_no_text_is_silence(tmp_path):
    script = r"printf '\377\376' > $GYRE_RESULTS/reward.txt"

    assert "cannot be read" in assess(tmp_path, script).reason


def test_the_evaluation_has_a_copy_of_its_files(tmp_path):
    files = tmp_path / "files"
    files.mkdir()
    (files / "answer").write_text("0.5")
    script = 'cd "$GYRE_EVALUATION"; cp answer $GYRE_RESULTS/reward.txt; echo spoiled > answer'

    assert EvaluatorAnswer(text="0.5") == assess(tmp_path, script, files=str(files))
    assert "0.5" == (files / "answer").read_text()


def test_files_that_are_gone_are_a_failure(tmp_path):
    with pytest.raises(EvaluatorError, match="files of the evaluation"):
        assess(tmp_path, ":", files=str(tmp_path / "gone"))


@pytest.mark.parametrize("name", ["reward.json", "reward.txt"])
def test_a_reward_is_looked_for_in_both_files(name, tmp_path):
    script = f"cd $GYRE_RESULTS; touch reward.json reward.txt; echo 1 > {name}"

    assert EvaluatorAnswer(text="1\n") == assess(tmp_path, script, score="reward")


def test_a_second_file_with_a_score_is_none_because_what_is_judged_may_have_written_it(tmp_path):
    """The judge runs the agent's program, and writes the file that is looked at last."""
    (tmp_path / "workspace").mkdir()
    (tmp_path / "workspace" / "run.sh").write_text("echo 1 > $GYRE_RESULTS/reward.json")
    script = "sh run.sh; echo 0 > $GYRE_RESULTS/reward.txt"

    found = assess(tmp_path, script, score="reward")

    assert "reward.json and reward.txt both hold a score" in found.reason


def test_a_zero_of_an_evaluator_that_could_not_set_itself_up_is_none(tmp_path):
    """As the tests of many tasks end that fetch their test program first."""
    script = (
        "no-such-fetcher --ctrf $GYRE_RESULTS/ctrf.json; "
        "if [ $? -eq 0 ]; then echo 1; else echo 0; fi > $GYRE_RESULTS/reward.txt"
    )
    asked = ("ctrf.json", "junit.xml")
    rule = EvaluationRule(argv=("x",), score="reward", evidence_any=asked)

    found = assess(tmp_path, script, score="reward", evidence_any=asked)
    with pytest.raises(ValueError, match=r"expected one of ctrf\.json, junit\.xml"):
        score_of(found, rule)
    (tmp_path / "there").mkdir()
    script = f"echo x > $GYRE_RESULTS/junit.xml; {script}"
    there = assess(tmp_path / "there", script, score="reward", evidence_any=asked)
    assert 0.0 == score_of(there, rule)


def test_only_files_that_hold_something_and_are_its_own_are_evidence(tmp_path):
    script = (
        "echo mine > mine; cd $GYRE_RESULTS; echo 1 > reward.txt; mkdir a; echo x > a/whole; "
        "touch empty; ln -s $OLDPWD/mine linked"
    )
    asked = ("a/whole", "empty", "linked", "missing", "../../workspace/mine", "/etc/passwd", "a")

    assert ("a/whole",) == assess(tmp_path, script, evidence=asked).evidence


def test_a_score_that_is_too_long_to_be_one_is_silence(tmp_path):
    script = "truncate -s 17M $GYRE_RESULTS/reward.txt"

    assert "cannot be read" in assess(tmp_path, script).reason


PAGE = Path(__file__).parents[2] / "docs" / "trajectories.md"
HIDDEN = """import subprocess, sys

def asked(text):
    return subprocess.run([sys.executable, "parse.py"], input=text, capture_output=True, text=True)

def test_empty():
    assert asked("").stdout == "[]"

def test_nested():
    assert asked("(())").stdout == "[[]]"

def test_plain():
    assert asked("").returncode == 0
"""
FORGERY = """import os
REPORT = "".join(f'<testcase classname="test_parse" name="test_{name}"/>'
                 for name in ("empty", "nested", "plain"))

def pytest_unconfigure(config):
    with open(os.environ["GYRE_RESULTS"] + "/junit.xml", "w") as file:
        file.write(f"<testsuite>{REPORT}</testsuite>")

def pytest_runtest_call(item):
    item.obj = lambda: None
"""
FORGED = {
    "conftest.py": FORGERY,
    "forgery.py": FORGERY,
    "json.py": "raise SystemExit(0)",
    "pytest.py": FORGERY + "\npytest_unconfigure(None)\n",
    "pytest.ini": "[pytest]\naddopts = -p forgery\npythonpath = .\n",
    "pyproject.toml": "[tool.pytest.ini_options]\naddopts = '-p forgery'\n",
    "test_parse.py": "def test_empty(): pass\ndef test_nested(): pass\ndef test_plain(): pass\n",
}


@pytest.mark.slow
@pytest.mark.parametrize(("program", "wanted"), [("", 0.0), ("print('[]', end='')", 0.5)])
def test_the_example_of_a_report_takes_nothing_of_pytest_from_the_workspace(
    program, wanted, tmp_path
):
    """Half of what counts passes where half is right, whatever hooks and settings say."""
    block = PAGE.read_text().split("```toml\n[evaluation]\n")[1].split("```")[0]
    said = tomllib.loads(f"[evaluation]\n{block}")["evaluation"]
    files, workspace = tmp_path / "files", tmp_path / "workspace"
    for folder, texts in {
        files: {"test_parse.py": HIDDEN},
        workspace: FORGED | {"parse.py": program},
    }.items():
        folder.mkdir()
        for name, text in texts.items():
            (folder / name).write_text(text)

    tests = CountedTests(**{name: tuple(names) for name, names in said["tests"].items()})
    _, _, script = said["argv"]
    found = assess(
        tmp_path,
        script.replace("python3", sys.executable),
        score=said["score"],
        files=str(files),
        tests=tests,
    )

    assert wanted == score_of(found, EvaluationRule(score=said["score"], tests=tests))
