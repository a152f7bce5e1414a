"""Use of processors and devices, shared out to what cells did, and how it is shown."""

import json
from dataclasses import replace

import pytest
from tests.observability.support.journals import SMALL, simulated

from gyre.observability.dashboard.panels import panels
from gyre.observability.dashboard.series import ViewWindow
from gyre.observability.dashboard.views import moment
from gyre.observability.history.cells import CellSpan
from gyre.observability.history.run import RunHistory
from gyre.observability.history.state import RunState
from gyre.observability.resource_use import OTHERS, ROLES, used
from gyre.observability.terminal.colors import ELLIPSIS, printed
from gyre.observability.terminal.progress import WIDTH, block
from gyre.scheduler.cells import CellState
from gyre.scheduler.messages import RunStarted
from gyre.types.run_events import DeviceUse, UseMeasured

HALF = DeviceUse(busy=0.5, used_bytes=1, total_bytes=2)


def fact(seconds=10.0, *, proxy_s=0.5, devices=None, **cells):
    return UseMeasured(
        seconds=seconds,
        cells={int(name[1:]): one for name, one in cells.items()},
        executions_s=4.0,
        proxy_s=proxy_s,
        controller_s=1.0,
        devices={} if devices is None else devices,
    )


def spans(*found):
    """Of every cell the same."""

    def inside(cell, since_s, until_s):
        return [CellSpan(start_s=a, end_s=b, state=state) for a, b, state in found]

    return inside


TURN = spans(
    (90.0, 92.0, CellState.SERVING),
    (92.0, 93.0, CellState.ENTERING),
    (93.0, 99.0, CellState.TRAINING),
    (99.0, 100.0, CellState.WAITING),
)


def test_a_measurement_is_shared_by_time():
    found = used(100.0, fact(c0=20.0), TURN, num=1)

    assert {"serving": 4.0, "switching": 2.0, "training": 12.0, "waiting": 2.0} == {
        role: part.cpu_s for role, part in found.cells[0].items()
    }
    assert [2.0] * 4 == [part.cores for part in found.cells[0].values()]
    assert [0.4, 1.2, 0.2, 0.2] == [found.cores(role) for role in ROLES]
    assert [0.4, 0.05, 0.1] == [found.cores(who) for who in OTHERS]
    assert 2.55 == pytest.approx(found.all_cores)


def test_what_was_not_measured_is_not_nothing():
    found = used(100.0, fact(proxy_s=None, c0=20.0, c9=3.0), TURN, num=2)

    assert found.cores("proxy") is None
    assert {0} == set(found.cells)
    assert found.busy is None
    assert found.cells[0]["training"].busy is None


def test_devices_are_shared_by_time_too():
    found = used(100.0, fact(c0=1.0, c1=1.0, devices={1: HALF}), TURN, num=2)

    assert (None, 0.5) == (found.cells[0]["serving"].busy, found.cells[1]["serving"].busy)
    assert (6.0, 0.5) == (found.role("training").device_of_s, found.busy)


@pytest.fixture(scope="module")
def events():
    return simulated(SMALL)[1]


@pytest.fixture(scope="module")
def measured(events):
    """A measurement every five minutes: a cell takes two processors, and its device half."""
    facts, due = [], 300.0
    for now, event in events:
        while due <= now:
            cells = {f"c{cell}": 600.0 for cell in range(4)}
            devices = dict.fromkeys(range(4), HALF)
            facts.append((due, fact(300.0, devices=devices, **cells)))
            due += 300.0
        facts.append((now, event))
    return facts


def story_of(facts):
    history = RunHistory(SMALL.shape)
    history.record_all(facts)
    return history


def panel(history, at_s=None):
    at_s = history.now_s if at_s is None else at_s
    return panels(history, ViewWindow(at_s=at_s, from_s=0.0, to_s=at_s), ["use"])["use"]


def test_a_panel_sums_what_was_measured_by_cell_and_role(measured):
    history = story_of(measured)
    found = panel(history)
    num = len(history.uses)
    by_cell = [sum(part["cpu_s"] for part in one["roles"].values()) for one in found["cells"]]

    assert found["is_measured"]
    assert found["has_devices"]
    assert [pytest.approx(600.0 * num)] * 4 == by_cell
    assert {2.0} == {round(part["cores"], 9) for part in found["total"].values()}
    assert {0.5} == {round(part["busy"], 9) for part in found["total"].values()}
    assert {"training", "serving"} <= set(found["total"])
    assert 4.0 * num == pytest.approx(found["beside"]["executions"]["cpu_s"])


def test_time_in_a_role_is_that_of_the_roles_of_cells(measured):
    history = story_of(measured)
    last = history.uses[-1].at_s
    training = sum(
        one.end_s - one.start_s
        for cell in range(4)
        for one in history.fleet.spans(cell, 0.0, last)
        if one.state is CellState.TRAINING
    )

    assert training == pytest.approx(panel(history)["total"]["training"]["seconds"])


def test_a_moment_knows_nothing_of_what_was_measured_later(measured):
    history = story_of(measured)
    half = history.now_s / 2
    then = story_of([one for one in measured if one[0] <= half])

    assert panel(then) == panel(history, then.now_s)
    assert half >= moment(history, half)["use"]["at_s"] > half - 300.0
    assert moment(history, 10.0)["use"] is None
    json.dumps(panel(history))


def test_a_run_in_which_nobody_measured_says_so(events):
    found = panel(story_of(events))

    assert not found["is_measured"]
    assert {} == found["total"]
    assert found["beside"]["proxy"]["cpu_s"] is None
    assert [] == found["over_time"]["at_s"]


def line(run):
    lines = printed(block(run, run.now_s), width=WIDTH, colour=False)
    return [one for one in lines if one.startswith("use ")]


def test_a_terminal_has_one_line_of_it_that_fits(measured, events):
    run = RunState(SMALL.shape)
    run.record_all(measured)
    (found,) = line(run)
    plain = RunState(SMALL.shape)
    plain.record_all(events)

    assert "8.0 cores, devices 50%" in found
    assert " serving" in found or " training" in found
    assert not found.endswith(ELLIPSIS)
    assert len(found) <= WIDTH
    assert [] == line(plain)


def test_every_measurement_is_kept_and_the_last_one_shown(measured):
    history = story_of(measured)

    assert sum(isinstance(one, UseMeasured) for _, one in measured) == len(history.uses)
    assert history.uses[-1] is history.use


def test_standalone_engines_count_too():
    """Engine 4 stands behind the cells, and serves."""
    run = RunState(replace(SMALL.shape, standalone_capacities=(16,)))
    run.record_all([(0.0, RunStarted()), (10.0, fact(c0=20.0, c4=30.0))])

    assert (5.0, 5.55) == (run.use.cores("serving"), pytest.approx(run.use.all_cores))


def test_a_measurement_of_no_time_is_passed_over(measured):
    history = story_of([*measured[:200], (measured[200][0], replace(fact(c0=1.0), seconds=0.0))])

    assert all(one.seconds > 0 for one in history.uses)
