"""What every source of tasks promises behind the TaskSource port; each promise is one function."""

from pathlib import Path
from typing import Protocol

import pytest

from gyre.types.errors import TaskError
from gyre.types.places import TaskSource


class Subject(Protocol):
    """A place where tasks can be written down."""

    def write(self, name: str, *, said: dict, rule: dict, files: dict[str, str] | None) -> None:
        """A task of that id, with more that it says, of its evaluation, and of its files."""
        ...

    def open(self) -> TaskSource: ...


def three(subject: Subject) -> TaskSource:
    for name in ("b", "a", "c"):
        said = {"instruction": f"do {name}", "metadata": {"level": name}, "variables": {"V": name}}
        subject.write(name, said=said, rule={"argv": ["check", name]}, files={"in/put": name})
    return subject.open()


def every_task_is_there_once(subject: Subject) -> None:
    source = three(subject)
    ids = [source.get(index).id for index in range(len(source))]

    assert ["a", "b", "c"] == sorted(ids)


def the_order_is_the_same_whenever_it_is_opened(subject: Subject) -> None:
    first = three(subject)
    again = subject.open()

    assert [first.get(index) for index in range(3)] == [again.get(index) for index in range(3)]


def a_task_says_what_was_written(subject: Subject) -> None:
    source = three(subject)
    for task in [source.get(index) for index in range(len(source))]:
        assert f"do {task.id}" == task.instruction
        assert ("check", task.id) == task.evaluation.argv
        assert ({"V": task.id}, {"level": task.id}) == (task.variables, task.metadata)
        assert Path(task.files).is_absolute()
        assert task.id == (Path(task.files) / "in" / "put").read_text()


def a_task_may_have_no_files(subject: Subject) -> None:
    subject.write("a", said={"instruction": "go"}, rule={"argv": ["check"]}, files=None)

    assert subject.open().get(0).files is None


def there_is_no_task_behind_the_last(subject: Subject) -> None:
    with pytest.raises(IndexError):
        three(subject).get(3)


def nothing_at_all_is_refused(subject: Subject) -> None:
    with pytest.raises(TaskError):
        subject.open()


MISTAKES = [
    ({"instruction": "go", "instructions": "x"}, {"argv": ["x"]}, "instructions: unknown key"),
    ({}, {"argv": ["x"]}, "instruction"),
    ({"instruction": 3}, {"argv": ["x"]}, "instruction"),
    ({"instruction": "  "}, {"argv": ["x"]}, "instruction: expected some text"),
    ({"instruction": "go"}, {}, "argv"),
    ({"instruction": "go"}, {"argv": []}, "evaluation.argv: expected a command"),
    ({"instruction": "go"}, {"argv": ["x"], "argc": 1}, "argc: unknown key"),
    ({"instruction": "go"}, {"argv": ["x"], "score": "stdout"}, "score"),
    ({"instruction": "go"}, {"argv": ["x"], "attempts": 0}, "attempts: expected at least 1"),
    ({"instruction": "go"}, {"argv": ["x"], "attempt_s": 0}, "attempt_s: expected more than 0"),
    ({"instruction": "go"}, {"argv": ["x"], "retry_s": -1}, "retry_s: expected 0 or more"),
    ({"instruction": "go"}, {"argv": ["x"], "lowest": 2}, "lowest below highest"),
    ({"instruction": "go", "metadata": {"a": 1}}, {"argv": ["x"]}, "metadata"),
]


def a_mistake_is_named_with_its_place_at_once(subject: Subject) -> None:
    for said, rule, complaint in MISTAKES:
        subject.write("wrong", said=said, rule=rule, files=None)
        with pytest.raises(TaskError, match=complaint) as error:
            subject.open()

        assert not error.value.retryable


EVERY_SOURCE = [
    every_task_is_there_once,
    the_order_is_the_same_whenever_it_is_opened,
    a_task_says_what_was_written,
    a_task_may_have_no_files,
    there_is_no_task_behind_the_last,
    nothing_at_all_is_refused,
    a_mistake_is_named_with_its_place_at_once,
]
