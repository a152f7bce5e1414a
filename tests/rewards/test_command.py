"""A command as an evaluator: where its score comes from, and where it does not."""

import asyncio
import secrets

import pytest

from gyre.rewards.command import CommandEvaluator
from gyre.sandboxes.process import ProcessSandbox
from gyre.types.errors import EvaluatorError
from gyre.types.outcomes import EvaluatorAnswer, NoAnswer
from gyre.types.tasks import EvaluationRule


def assess(folder, script, *, score="reward.txt", files=None, evidence=()):
    workspace, scratch = folder / "workspace", folder / "scratch"
    workspace.mkdir(exist_ok=True)
    scratch.mkdir()
    evaluator = CommandEvaluator(
        EvaluationRule(argv=("sh", "-c", script), score=score, files=files, evidence=evidence),
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


def test_a_reward_is_looked_for_in_both_files(tmp_path):
    both = "cd $GYRE_RESULTS; echo 1 > reward.txt; echo 2 > reward.json"

    assert EvaluatorAnswer(text="2\n") == assess(tmp_path, both, score="reward")


def test_the_second_file_counts_where_the_first_is_missing(tmp_path):
    assert EvaluatorAnswer(text="1\n") == assess(
        tmp_path, "echo 1 > $GYRE_RESULTS/reward.txt", score="reward"
    )


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
