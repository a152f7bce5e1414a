"""What folders and lines of tasks have of their own."""

import json

import pytest

from gyre.tasks.folder import FolderTasks, JsonlTasks
from gyre.types.errors import TaskError

TOML = 'instruction = "go"\n[evaluation]\nargv = ["sh", "check.sh"]\nscore = "exit-status"\n'


def test_a_folder_of_evaluation_files_is_found_beside_the_task(tmp_path):
    (tmp_path / "one" / "evaluation").mkdir(parents=True)
    (tmp_path / "one" / "task.toml").write_text(TOML)
    (tmp_path / "README").write_text("not a task")
    task = FolderTasks(tmp_path).get(0)

    assert ("one", "exit-status") == (task.id, task.evaluation.score)
    assert str(tmp_path / "one" / "evaluation") == task.evaluation.files


@pytest.mark.parametrize("more", ['id = "x"\n', 'files = "x"\n'])
def test_what_the_folder_says_is_not_said_again(more, tmp_path):
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "task.toml").write_text(more + TOML)

    with pytest.raises(TaskError, match="said by the task's folder already"):
        FolderTasks(tmp_path)


@pytest.mark.parametrize("text", [b"instruction = ", b"\xff\xfe", b"a = " + b"[" * 100_000])
def test_a_file_that_is_no_toml_is_named(text, tmp_path):
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "task.toml").write_bytes(text)

    with pytest.raises(TaskError, match=r"one/task\.toml"):
        FolderTasks(tmp_path)


def line(**changed):
    return json.dumps({"id": "a", "instruction": "go", "evaluation": {"argv": ["x"]}} | changed)


@pytest.mark.parametrize(
    ("lines", "complaint"),
    [
        ([line(), "", line()], ":3: 'a' is the id of line 1 already"),
        ([line(), "[1]"], ":2: expected an object, found a list"),
        ([line(), "{"], ":2: "),
        ([line(id="")], ":1: id: expected a name"),
        ([line(files="nowhere")], ":1: nowhere: expected a folder"),
        ([line(evaluation=3)], ":1: "),
    ],
)
def test_a_wrong_line_is_named_by_its_number(lines, complaint, tmp_path):
    path = tmp_path / "tasks.jsonl"
    path.write_text("\n".join(lines))

    with pytest.raises(TaskError, match=complaint):
        JsonlTasks(path)


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(TaskError, match="No such file"):
        JsonlTasks(tmp_path / "none")
    with pytest.raises(TaskError, match="found none"):
        FolderTasks(tmp_path / "none")
