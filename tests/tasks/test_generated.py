"""Tasks that a function makes, and what it may give instead."""

import sys

import pytest

from gyre.tasks.generated import generated
from gyre.types.errors import TaskError
from gyre.types.tasks import EvaluationRule, Task

HERE = "tests.tasks.test_generated"


def numbered(count="2", prefix="t"):
    return [
        Task(
            id=f"{prefix}{number}",
            instruction=f"say {number}",
            files=None,
            evaluation=EvaluationRule(argv=("true",)),
        )
        for number in range(int(count))
    ]


def nothing():
    return []


def twice():
    return numbered("1") * 2


def number():
    return 3


def texts():
    return ["a"]


class Endless:
    """A source of its own, whose tasks are made when they are asked for."""

    def __len__(self):
        return 10**9

    def get(self, index):
        return numbered("1", prefix=f"{index}-")[0]


def test_options_go_to_the_function():
    found = generated(f"{HERE}:numbered?count=3&prefix=x")

    assert ["x0", "x1", "x2"] == [found.get(index).id for index in range(len(found))]
    with pytest.raises(IndexError):
        found.get(3)


def test_a_source_may_make_its_tasks_when_they_are_asked_for():
    found = generated(f"{HERE}:Endless")

    assert (10**9, "123456-0") == (len(found), found.get(123456).id)


def test_a_file_may_stand_for_the_module(tmp_path):
    path = tmp_path / "my_tasks.py"
    path.write_text(f"from {HERE} import numbered as made\n")

    assert 5 == len(generated(f"{path}:made?count=5"))


def test_a_module_of_the_working_directory_is_found(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tasks_found_here.py").write_text(f"from {HERE} import numbered\n")

    assert 2 == len(generated("tasks_found_here:numbered"))


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        ("numbered", "expected MODULE:FUNCTION"),
        ("no.such.module:f", "expected a function that can be imported"),
        (f"{HERE}:none", "expected a function that can be imported"),
        ("none.py:f", "no such file"),
        (f"{HERE}:numbered?cuont=3", "unexpected keyword"),
        (f"{HERE}:numbered?count=x", "invalid literal"),
        (f"{HERE}:nothing", "at least one task"),
        (f"{HERE}:twice", "'t0' is the name of two tasks"),
        (f"{HERE}:number", "found a int"),
        (f"{HERE}:texts", "tasks and nothing else"),
    ],
)
def test_what_gives_no_tasks_is_named(source, complaint):
    with pytest.raises(TaskError, match=complaint):
        generated(source)
