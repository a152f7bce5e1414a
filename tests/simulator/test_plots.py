"""Pictures: they are of the kind asked for, show every run, and come out the same twice."""

import io
from xml.etree import ElementTree

import pytest
from tests.simulator.support.scenes import scenario

from gyre.scheduler.policies import Async
from gyre.simulator.plots import figure, save
from gyre.simulator.report import ScenarioRuns
from gyre.simulator.world import run


def ran(name, **changes):
    one = scenario([(1.0, 2.0), (0.5, 1.5)], steps=2, **changes)
    return ScenarioRuns(name=name, scenario=one, records=(run(one),))


@pytest.fixture(scope="module")
def both():
    return [ran("mine"), ran("theirs", placement=Async(), standalone_capacities=(2,))]


def saved(rans, kind):
    file = io.BytesIO()
    save(figure(rans), file, kind=kind)
    return file.getvalue()


def test_each_run_has_its_roles_its_waterlevel_and_its_ready_groups(both):
    axes = figure(both).axes
    labels = [one.get_ylabel() for one in axes]

    assert ["cell", "executions", "ready groups"] == labels[:3]
    assert ["cell, then standalone", "executions", "ready groups"] == labels[3:]
    hours = [f"{one.name}: {one.records[0].hours:.2f} h" for one in both]
    assert hours == [axes[at].get_title(loc="left") for at in (0, 3)]
    assert 1 == len({one.get_xlim() for one in axes})


def test_roles_are_drawn_where_they_were(both):
    axes = figure(both).axes[0]
    spans = [bar for bars in axes.collections for bar in bars.get_paths()]
    widths = sum(one.get_extents().width for one in spans)

    assert both[0].records[0].end_s / 3600 == pytest.approx(widths)


@pytest.mark.parametrize(("kind", "beginning"), [("png", b"\x89PNG"), ("svg", b"<?xml")])
def test_the_same_runs_give_the_same_bytes(both, kind, beginning):
    first = saved(both, kind)

    assert first.startswith(beginning)
    assert first == saved(both, kind)
    assert first != saved(both[:1], kind)


def test_text_in_a_drawing_is_text(both):
    words = "".join(ElementTree.fromstring(saved(both, "svg")).itertext())

    for expected in ("mine", "theirs", "waterlevel", "capacity", "training", "hours"):
        assert expected in words
