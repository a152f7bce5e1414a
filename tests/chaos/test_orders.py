"""Processes die or stop in the moment in which they are ordered to do something, in a live run."""

import asyncio
import os
import signal
from pathlib import Path

import pytest
import uvloop
from tests.flows.live.followed_run import watched
from tests.flows.live.running import SCHEDULE, Ran, pid_of, tasks_of, write_run

from gyre.controller.controller import JOURNAL_EVENTS, Controller
from gyre.controller.run_dir import read_run
from gyre.journal.journal import read
from gyre.observability.ledgers import ledgers
from gyre.scheduler.messages import (
    CellDied,
    CellRecovered,
    EngineReturned,
    EnterTraining,
    Publish,
    Published,
    StopReason,
)
from gyre.scheduler.replay import replay
from gyre.storage import call_log
from gyre.testing.emulated_cell import tables
from gyre.types.call_records import CallClosed, CallFailed

pytestmark = [pytest.mark.slow, pytest.mark.chaos]

CELLS, ENGINE = 3, 3
SHORT = {"lease_s": 3.0, "group_s": 4.0, "publish_s": 1.0}


class Blows:
    """One fault after another, each with the first order that it waits for."""

    def __init__(self, folder):
        self._folder = folder
        self._kinds = iter((self.joining, self.publishing, self.moving))
        self._next = next(self._kinds)
        self.struck = {}
        self.decided = []

    def __call__(self, scheduler, now, event, orders):
        self.decided.append((now, event, tuple(orders)))
        if self._next is not None and any(self._next(order) for order in orders):
            self._next = next(self._kinds, None)

    def joining(self, order):
        """A satellite that is to join an open batch."""
        if not (isinstance(order, EnterTraining) and order.cell == 1):
            return False
        self._strike("joining", "cell-1", signal.SIGKILL, order)
        return True

    def publishing(self, order):
        """An engine that is to get the new weights."""
        if not (isinstance(order, Publish) and ENGINE in order.engines):
            return False
        self._strike("publishing", f"engine-{ENGINE}", signal.SIGSTOP, order)
        return True

    def moving(self, order):
        """The engine to which calls of a cell are to move, once it is back from the last."""
        is_back = any(isinstance(event, EngineReturned) for _, event, _ in self.decided)
        if not (is_back and isinstance(order, EnterTraining)):
            return False
        if ENGINE not in {move.engine for move in order.moves}:
            return False
        self._strike("moving", f"engine-{ENGINE}", signal.SIGKILL, order)
        return True

    def _strike(self, name, process, number, order):
        os.kill(pid_of(self._folder, process), number)
        self.struck[name] = (len(self.decided), order)


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """A run, and what was done to it."""
    folder = tmp_path_factory.mktemp("orders")
    tasks = tasks_of(folder, seed=9, mean_s=0.6)
    schedule = {"schedule": {**SCHEDULE, **SHORT, "steps": 6}}
    cells = {"cells": {"count": CELLS, "capacity": 5, "standalone": [5]}}
    path = write_run(folder / "run.toml", tables(folder / "run", tasks, schedule, cells))
    run = read_run(path, ())
    place = Path(run.config.run.place)
    blows = Blows(folder)
    controller = Controller(run, place, decided=blows)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        reason = runner.run(controller.work())
    reading = read(place / "journal", kinds=JOURNAL_EVENTS)
    over = Ran(folder=place, shape=run.shape, reason=reason, decided=blows.decided, reading=reading)
    return over, blows.struck


def after(over, struck, kind):
    """Events of a kind since a fault."""
    return [one for _, one, _ in over.decided[struck[0] :] if isinstance(one, kind)]


def test_the_run_is_what_it_would_have_been(ran):
    """FAULTS 39: every promise of SPEC 1 and 2 was watched, and no call has failed."""
    over, struck = ran
    found = ledgers(over.reading)

    assert {"joining", "publishing", "moving"} == set(struck), "not every fault came to pass"
    assert StopReason.FINISHED is over.reason is watched(over.shape, over.events).stopped
    assert [orders for _, _, orders in over.decided] == list(replay(over.shape, over.events).orders)
    assert found.balance
    assert (6 * 3, 6 * 12) == (found.groups.trained, found.executions.valid)
    assert [] == [
        one
        for path in call_log.logs(over.folder)
        for one in call_log.read(path).records
        if isinstance(one, CallFailed)
    ]


def test_a_satellite_that_dies_on_its_way_into_training_holds_nobody_up(ran):
    """FAULTS 23: the core trains on, and another process takes its place."""
    over, struck = ran

    assert 1 in {one.cell for one in after(over, struck["joining"], CellDied)}
    assert 1 in {one.cell for one in after(over, struck["joining"], CellRecovered)}


def test_an_engine_that_misses_a_publication_serves_nothing_before_it_has_it(ran):
    """FAULTS 7, 28: it is published without it, and it comes back with verified weights."""
    over, struck = ran
    published = after(over, struck["publishing"], Published)[0]
    returned = [
        one for one in after(over, struck["publishing"], EngineReturned) if one.engine == ENGINE
    ]

    assert struck["publishing"][1].version == published.version
    assert (ENGINE,) == published.silent
    assert published.version <= returned[0].version
    spans = [
        span
        for path in call_log.logs(over.folder)
        for one in call_log.read(path).records
        if isinstance(one, CallClosed)
        for span in one.spans
    ]
    assert {None} & {span.version for span in spans} == set()
    assert 2 <= len({span.version for span in spans})


def test_calls_whose_destination_dies_while_they_move_go_on_elsewhere(ran):
    """FAULTS 39: they had places there; it was killed with the order that gave them."""
    over, struck = ran
    _, order = struck["moving"]

    assert ENGINE in {move.engine for move in order.moves}
    assert ENGINE in {one.engine for one in after(over, struck["moving"], EngineReturned)}
