"""A run goes on whatever its trackers do."""

import threading
from types import SimpleNamespace

from tests.waiting import PATIENCE_S, wait_until

from gyre.observability.trackers import registry
from gyre.observability.trackers.registry import TrackerAdapter, Trackers
from gyre.testing.trackers import LoggedValue, MemoryTracker

LOST = "tracker bad: logs that were lost: {}"
LATE = "tracker {}: did not finish in time"


def opened_by(**opened):
    """Trackers of adapters that are opened by these functions."""
    return Trackers(
        [
            TrackerAdapter(name=name, module=SimpleNamespace(opened=one), run=None)
            for name, one in opened.items()
        ]
    )


def around(**trackers):
    return opened_by(**{name: lambda run, one=one: one for name, one in trackers.items()})


def steps(tracker):
    return [one.step for one in tracker.logged]


def test_every_tracker_gets_everything_in_order():
    one, two = MemoryTracker(), MemoryTracker()
    trackers = around(one=one, two=two)
    for step in range(50):
        trackers.log({"a": step / 2}, step=step)
    trackers.close()

    assert [LoggedValue(name="a", step=step, value=step / 2) for step in range(50)] == one.logged
    assert one.logged == two.logged
    assert (1, 1, ()) == (one.num_closed, two.num_closed, trackers.warnings)


def test_what_is_logged_may_change_afterwards():
    gate, values = threading.Event(), {"a": 1.0}
    tracker = MemoryTracker(open_gate=gate)
    trackers = around(slow=tracker)
    trackers.log(values, step=0)
    values["a"] = 2.0
    gate.set()
    trackers.close()

    assert [LoggedValue(name="a", step=0, value=1.0)] == tracker.logged


def test_one_that_fails_is_a_warning_once_and_the_others_go_on():
    good, bad = MemoryTracker(), MemoryTracker(failing={"log"})
    trackers = around(bad=bad, good=good)
    for step in range(3):
        trackers.log({"a": 0.0}, step=step)
    trackers.close()

    assert ("tracker bad: log: OSError: no space left", LOST.format(3)) == trackers.warnings
    assert [0, 1, 2] == steps(good)
    assert 1 == bad.num_closed


def test_one_that_recovers_gets_what_comes_then():
    warned = threading.Event()
    tracker = MemoryTracker(failing={"log"})

    class Watched:
        def __init__(self, run):
            pass

        def log(self, values, *, step):
            try:
                tracker.log(values, step=step)
            finally:
                warned.set()

        close = tracker.close

    trackers = opened_by(bad=Watched)
    trackers.log({"a": 0.0}, step=0)
    assert warned.wait(PATIENCE_S)
    tracker.failing.clear()
    trackers.log({"a": 0.0}, step=1)
    trackers.close()

    assert [1] == steps(tracker)
    assert LOST.format(1) == trackers.warnings[-1]


def test_one_that_cannot_be_opened_is_a_warning():
    def refuse(run):
        raise ValueError("no key\nand a page of advice")

    trackers = opened_by(bad=refuse)
    trackers.log({"a": 0.0}, step=0)
    trackers.close()

    assert ("tracker bad: open: ValueError: no key", LOST.format(1)) == trackers.warnings


def test_one_that_cannot_be_closed_is_a_warning():
    trackers = around(bad=MemoryTracker(failing={"close"}))
    trackers.close()

    assert ("tracker bad: close: OSError: gone",) == trackers.warnings


def test_one_that_hangs_neither_holds_a_log_nor_the_end():
    gate = threading.Event()
    good = MemoryTracker()
    bad = MemoryTracker(open_gate=gate)
    trackers = around(bad=bad, good=good)
    for step in range(3):
        trackers.log({"a": 0.0}, step=step)
    wait_until(lambda: len(steps(good)) == 3, "what the other logged")
    trackers.close(within_s=0.5)
    gate.set()
    wait_until(lambda: bad.num_closed and good.num_closed, "the end of both")
    # The other one has no time left, and may be late with closing, with nothing lost.
    warnings = [one for one in trackers.warnings if one != LATE.format("good")]

    assert [0, 1, 2] == steps(good)
    assert LATE.format("bad") == warnings[0]
    assert [True] == [one.startswith("tracker bad: logs that were lost: ") for one in warnings[1:]]


def test_what_waits_is_bounded(monkeypatch):
    monkeypatch.setattr(registry, "MOST_WAITING", 2)
    gate = threading.Event()
    tracker = MemoryTracker(open_gate=gate)
    trackers = around(bad=tracker)
    for step in range(20):
        trackers.log({"a": 0.0}, step=step)
    gate.set()
    trackers.close()

    assert "tracker bad: 2 logs wait for it, more are lost" == trackers.warnings[0]
    assert LOST.format(20 - len(tracker.logged)) == trackers.warnings[1]
    assert sorted(steps(tracker)) == steps(tracker)
    assert 2 <= len(tracker.logged) <= 3


def test_closing_again_and_logging_afterwards_do_nothing():
    tracker = MemoryTracker()
    trackers = around(one=tracker)
    trackers.close()
    trackers.close()
    trackers.log({"a": 0.0}, step=0)

    assert (1, [], ()) == (tracker.num_closed, tracker.logged, trackers.warnings)
