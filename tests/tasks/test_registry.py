"""Which source a table or a word on a command line means, and which tasks fit which sandbox."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from gyre.config.run_config import HarborTasksConfig
from gyre.tasks.registry import open_tasks, refuse_unfit, section_for
from gyre.tasks.task_list import ListedTasks
from gyre.types.errors import ConfigError
from gyre.types.tasks import EvaluationRule, ResourceNeeds, Task

SHIPPED = Path(__file__).parents[2] / "examples" / "tasks"
PLAIN = 'instruction = "go"\n[evaluation]\nargv = ["true"]\n'


def test_every_kind_is_known_by_its_look(tmp_path):
    (tmp_path / "plain" / "one").mkdir(parents=True)
    (tmp_path / "plain" / "one" / "task.toml").write_text(PLAIN)
    lines = tmp_path / "tasks.jsonl"
    lines.write_text('{"id": "a", "instruction": "go", "evaluation": {"argv": ["true"]}}\n')
    found = {
        "harbor": str(SHIPPED),
        "folder": str(tmp_path / "plain"),
        "jsonl": str(lines),
        "python": "tests.tasks.test_generated:numbered?count=4",
    }

    for kind, text in found.items():
        section = section_for(text)
        assert (kind, True) == (section.kind, len(open_tasks(section)) > 0)


def test_one_task_alone_is_a_source(tmp_path):
    section = section_for(str(SHIPPED / "greeting"))

    assert ("harbor", 1) == (section.kind, len(open_tasks(section)))


def test_an_archive_is_opened_like_its_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    packed = shutil.make_archive(str(tmp_path / "tasks"), "gztar", SHIPPED)
    section = section_for(packed)

    assert "harbor" == section.kind
    assert len(open_tasks(section)) == len(open_tasks(section_for(str(SHIPPED))))


def test_a_place_that_is_not_there_is_named_with_its_table():
    section = HarborTasksConfig(kind="harbor", path="/no/such/place")
    with pytest.raises(ConfigError, match=r"evaluation\.tasks\.path: /no/such/place: expected"):
        open_tasks(section, where="evaluation.tasks")
    with pytest.raises(ConfigError, match=r"tasks\.path: nowhere: expected"):
        section_for("nowhere")


TASK = Task(id="a", instruction="go", files=None, evaluation=EvaluationRule(argv=("true",)))


def test_a_task_that_needs_its_image_runs_only_where_it_gets_one():
    tasks = ListedTasks([TASK, replace(TASK, id="b", needs=ResourceNeeds(portable=False))], "here")
    refuse_unfit(tasks, sandbox="docker")
    with pytest.raises(ConfigError, match=r"task b: needs its image.*sandbox\.kind = docker"):
        refuse_unfit(tasks, sandbox="process")
