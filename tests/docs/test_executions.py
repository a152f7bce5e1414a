"""The page on runs names what the code knows: endings, outcomes, statuses, files."""

import re
import tomllib
from dataclasses import fields
from pathlib import Path

import pytest

from gyre.rollout import facts, spec
from gyre.rollout import facts as outcome
from gyre.tasks.folder import task
from gyre.types.outcomes import Ending, Outcome, Status
from gyre.types.tasks import EvaluationRule

PAGE = (Path(__file__).parents[2] / "docs" / "runs.md").read_text()


def named(heading):
    """What the first cells of a section's tables name."""
    section = re.split(r"^## ", PAGE.partition(f"## {heading}\n")[2], maxsplit=1, flags=re.M)[0]
    cells = re.findall(r"^\| (`.*?) \|", section, re.MULTILINE)
    return {name for cell in cells for name in re.findall(r"`([^`]+)`", cell)}


@pytest.mark.parametrize(("heading", "kind"), [("Endings", Ending), ("Outcomes", Outcome)])
def test_every_word_has_its_line(heading, kind):
    assert {one.value for one in kind} == named(heading)


def test_every_status_and_setting_is_named():
    assert set() == {one.value for one in Status} - set(re.findall(r"`([a-z-]+)`", PAGE))
    assert {one.name for one in fields(EvaluationRule)} == named("A task")


def test_the_files_are_called_that():
    files = {facts.FACTS_FILE, outcome.OUTCOME_FILE, spec.ORDER_FILE, spec.TOLD_FILE}

    assert files <= named("Files")


def test_the_task_of_the_page_can_be_read(tmp_path):
    (text,) = re.findall(r"^```toml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    (tmp_path / "evaluation").mkdir()
    found = task(tomllib.loads(text), where="page", folder=tmp_path, name="count-words")

    assert ("count-words", "reward.txt") == (found.id, found.evaluation.score)
    assert found.evaluation.files
