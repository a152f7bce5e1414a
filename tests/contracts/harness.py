"""What every harness promises behind the Harness port; each promise is one function."""

from typing import Protocol

from gyre.types.places import Harness
from gyre.types.tasks import Endpoint, EvaluationRule, Task

ENDPOINT = Endpoint(url="http://127.0.0.1:9/exec/e1", key="gyre-secret")
HARD = "line one\nline 'two' \"three\" $HOME `id` {url} {key} {instruction} \\ ünï {0} %s"


class Subject(Protocol):
    """A harness under test."""

    harness: Harness


def task(instruction: str) -> Task:
    return Task(
        id="t-1", instruction=instruction, files=None, evaluation=EvaluationRule(argv=("true",))
    )


def there_is_a_program(subject: Subject) -> None:
    command = subject.harness.command(task("go"), ENDPOINT)

    assert command.argv
    assert all(isinstance(one, str) for one in command.argv)


def the_instruction_arrives_as_it_is(subject: Subject) -> None:
    """Whatever it spells, and read once only."""
    command = subject.harness.command(task(HARD), ENDPOINT)

    assert any(HARD in one for one in command.argv)


def the_key_is_in_no_argument(subject: Subject) -> None:
    for instruction in ("go", HARD, "{key}"):
        command = subject.harness.command(task(instruction), ENDPOINT)

        assert not any(ENDPOINT.key in one for one in command.argv)


def the_same_task_is_started_in_the_same_way(subject: Subject) -> None:
    first = subject.harness.command(task("go"), ENDPOINT)

    assert first == subject.harness.command(task("go"), ENDPOINT)


def one_task_leaves_nothing_for_the_next(subject: Subject) -> None:
    first = subject.harness.command(task("go"), ENDPOINT)
    subject.harness.command(task("stop"), ENDPOINT).variables["left"] = "over"

    assert first == subject.harness.command(task("go"), ENDPOINT)


EVERY_HARNESS = [
    there_is_a_program,
    the_instruction_arrives_as_it_is,
    the_key_is_in_no_argument,
    the_same_task_is_started_in_the_same_way,
    one_task_leaves_nothing_for_the_next,
]
