"""What every tracker promises behind the Tracker port; each promise is one function."""

import math
import sys
from typing import Protocol

from tests.waiting import wait_until

from gyre.testing.trackers import LoggedValue
from gyre.types.protocols import Tracker


class Subject(Protocol):
    """A place for one run's metrics, and a reader of it."""

    def open(self) -> Tracker:
        """Also a second time, as a run does that goes on."""
        ...

    def read(self) -> list[LoggedValue]:
        """What arrived, in its order; values of one log in any order."""
        ...


def arrived(subject: Subject, count: int) -> set[tuple[str, int, float]]:
    """What is there as soon as there is enough; libraries hand values to threads of theirs."""
    wait_until(lambda: len(subject.read()) >= count, f"{count} values")
    found = subject.read()
    assert count == len(found)
    return {(one.name, one.step, one.value) for one in found}


def what_is_logged_can_be_read_before_it_is_closed(subject: Subject) -> None:
    tracker = subject.open()
    tracker.log({"train/loss": 0.5, "train/step_s": 12.25}, step=0)
    first = arrived(subject, 2)
    tracker.log({"train/loss": -0.25}, step=1)
    second = arrived(subject, 3) - first
    tracker.close()

    assert {("train/loss", 0, 0.5), ("train/step_s", 0, 12.25)} == first
    assert {("train/loss", 1, -0.25)} == second


def steps_may_repeat_and_go_back(subject: Subject) -> None:
    """An evaluation of an older version ends after newer steps."""
    tracker = subject.open()
    tracker.log({"train/loss": 0.5}, step=7)
    tracker.log({"evaluation/reward": 0.75}, step=4)
    tracker.log({"train/clipped": 1.0}, step=7)
    tracker.close()

    expected = {("train/loss", 7, 0.5), ("evaluation/reward", 4, 0.75), ("train/clipped", 7, 1.0)}
    assert expected == arrived(subject, 3)


def values_that_are_no_numbers_arrive(subject: Subject) -> None:
    """A database without infinities may hold the largest number instead."""
    tracker = subject.open()
    tracker.log({"a": math.nan, "b": math.inf, "c": -math.inf}, step=2)
    tracker.close()
    found = {name: value for name, _, value in arrived(subject, 3)}

    assert math.isnan(found["a"])
    assert found["b"] >= sys.float_info.max
    assert found["c"] <= -sys.float_info.max


def nothing_to_log_is_no_trouble(subject: Subject) -> None:
    tracker = subject.open()
    tracker.log({}, step=0)
    tracker.log({"a": 1.0}, step=1)
    tracker.close()

    assert {("a", 1, 1.0)} == arrived(subject, 1)


def closing_again_does_nothing(subject: Subject) -> None:
    tracker = subject.open()
    tracker.log({"a": 1.0}, step=1)
    tracker.close()
    tracker.close()

    assert {("a", 1, 1.0)} == arrived(subject, 1)


def a_run_that_goes_on_keeps_what_it_logged(subject: Subject) -> None:
    first = subject.open()
    first.log({"a": 1.0}, step=0)
    first.close()
    second = subject.open()
    second.log({"a": 2.0}, step=1)
    second.close()

    assert {("a", 0, 1.0), ("a", 1, 2.0)} == arrived(subject, 2)


EVERY_TRACKER = [
    what_is_logged_can_be_read_before_it_is_closed,
    steps_may_repeat_and_go_back,
    values_that_are_no_numbers_arrive,
    nothing_to_log_is_no_trouble,
    closing_again_does_nothing,
    a_run_that_goes_on_keeps_what_it_logged,
]
