"""The page at the end of a run, against the run that it is about."""

from dataclasses import replace

import pytest
from tests.observability.support.journals import SMALL, journal, simulated, told
from tests.simulator.support.scenes import scenario

from gyre.journal.journal import Journal, read
from gyre.observability.history.run import RunHistory
from gyre.observability.terminal.charts import curve, timeline
from gyre.observability.terminal.summary import WIDTH, summary
from gyre.observability.terminal.text import bar, clock, sized, spark, spoken, squeezed
from gyre.observability.what_if import SimulatedPlacement
from gyre.scheduler.messages import RunStarted, StepTaken
from gyre.scheduler.policies import Continuous
from gyre.scheduler.replay import JOURNAL_EVENTS

ROWS = (
    SimulatedPlacement(
        placement="elastic", how="phi 0.5, mu 3", steps=12, minutes=100.0, staleness=1.375
    ),
    SimulatedPlacement(placement="async", how="2 train, 2 serve (best)", steps=12, minutes=125.0),
    SimulatedPlacement(placement="colocate", how="did not finish: too-many-void", steps=12),
)


@pytest.fixture(scope="module")
def reading(tmp_path_factory):
    path = tmp_path_factory.mktemp("run") / "journal"
    return journal(path, SMALL, told(simulated(SMALL)[1]))


@pytest.fixture(scope="module")
def page(reading):
    return summary(reading, ROWS).splitlines()


def below(page, title):
    """Lines of a section."""
    start = page.index(title) + 1
    return page[start : page.index("", start) if "" in page[start:] else None]


def row(page, title, label):
    """Words beside a label."""
    (found,) = [one for one in below(page, title) if one.strip().startswith(label)]
    return found.strip().removeprefix(label).strip()


def test_the_page_begins_with_what_ran_and_how_it_ended(page):
    assert "scene: 12 steps in 11.6 h, finished" == page[0]
    assert "elastic, phi 0.5, mu 3; 4 cells of 40 executions; batches of 8 x 8" == page[1]


def test_nothing_is_wider_than_the_page(page, reading):
    assert all(len(line) <= WIDTH for line in page)
    assert all(line == line.rstrip() for line in page)
    assert summary(reading, ROWS, encoding="ascii").isascii()


def test_every_cell_has_a_row_that_says_what_it_did(page):
    _, events = simulated(SMALL)
    history = RunHistory(SMALL.shape)
    history.record_all(events)
    drawn = {label: row(page, "Cells", label) for label in ("core", "cell 1", "cell 2", "cell 3")}

    for cell, text in enumerate(drawn.values()):
        signs, share = text.split()
        spent = sum(
            one.end_s - one.start_s
            for one in history.fleet.spans(cell, 0.0, history.now_s)
            if one.state.value == "training"
        )
        assert f"{spent / history.now_s:.0%}" == share
        assert signs.count("█") / len(signs) == pytest.approx(spent / history.now_s, abs=0.06)
    assert set("·█") >= set(drawn["core"].split()[0])
    assert 12 == row(page, "Cells", "steps").count("+")


def test_the_staleness_is_beside_its_prediction(page):
    assert "1.375 over 96 groups" == row(page, "Staleness", "mean")
    assert "1.500 in the long run, phi + (mu - 1)/2" == row(page, "Staleness", "predicted")
    assert any("1.375 exactly for 12 steps" in one for one in below(page, "Staleness"))
    assert "132 consumed + 0 outstanding = 132 survivors; exact at every step" == row(
        page, "Staleness", "identity"
    )


def test_claims_and_transitions_are_added_up(page):
    assert "192 in 9.6 min of cells' time, 50% of them by satellites" == row(page, "Claims", "all")
    assert row(page, "Claims", "core").endswith(" 96   50%")
    assert row(page, "Transitions", "all").startswith("13 into training, 12 home; 0 turned back")
    assert "1.8 min each: drain 0.5 s, offload 1.0 s, restore 2.0 s" == row(
        page, "Transitions", "in "
    )
    moved = row(page, "Transitions", "moved")
    assert "259 executions, 39 reroutes, 26.0 MB carried, 9,100 carried" == moved


def test_placements_are_measured_by_elastic_and_stand_beside_the_run_itself(page):
    title = "The same work, simulated"

    assert ["100.00", "1.00x", "1.38"] == row(page, title, "elastic").split()[:3]
    assert ["125.00", "1.25x", "-"] == row(page, title, "async").split()[:3]
    assert "-       -          -  did not finish: too-many-void" == row(page, title, "colocate")
    assert ["691.63", "6.92x", "1.38"] == row(page, title, "live").split()[:3]
    assert "  Elastic takes 20% less time than async." == page[-1]


def test_a_page_without_a_comparison_leaves_it_out(reading):
    assert "simulated" not in summary(reading)


def test_a_journal_without_facts_for_people_has_a_page_too(tmp_path):
    page = summary(journal(tmp_path / "journal", SMALL, simulated(SMALL)[1])).splitlines()

    assert "Reward by step" not in page
    assert "Claims" not in page
    assert "1.8 min each" == row(page, "Transitions", "in ")
    assert "scene: 12 steps in 11.6 h, finished" == page[0]


@pytest.mark.parametrize("keep", [0, 1, 2, 40, 900])
def test_a_run_that_was_cut_short_has_a_page_that_says_so(tmp_path, keep):
    facts = list(told(simulated(SMALL)[1]))[:keep]
    page = summary(journal(tmp_path / "journal", SMALL, facts)).splitlines()

    assert page[0].endswith(", NOT FINISHED")
    assert " of 12 steps in " in page[0]
    assert not any("exactly for" in line for line in page)
    assert all(len(line) <= WIDTH for line in page)


def test_a_resumed_run_says_so(tmp_path):
    one = scenario(steps=2)
    _, events = simulated(one)
    journal(tmp_path / "journal", one, events[:3])
    resumed, _ = Journal.resume(tmp_path / "journal", at=1.0, kinds=JOURNAL_EVENTS)
    with resumed:
        for now, event in events[3:]:
            resumed.append(event, now=now)
    page = summary(read(tmp_path / "journal", kinds=JOURNAL_EVENTS)).splitlines()

    assert ["  the run was resumed once"] == below(page, "Notes")
    assert page[0].endswith("finished")


def test_facts_that_make_no_run_are_named_after_what_was_sound(tmp_path):
    facts = [(0.0, RunStarted()), (5.0, StepTaken(step=3))]
    page = summary(journal(tmp_path / "journal", SMALL, facts)).splitlines()

    note = " ".join(one.strip() for one in below(page, "Notes"))
    assert "make no run after 0.0 s: step 3 was taken, and its batch is not open" in note


def test_a_journal_without_a_header_has_nothing_to_say(tmp_path):
    (tmp_path / "journal").write_bytes(b"")

    assert "nothing is recorded" in summary(read(tmp_path / "journal", kinds=JOURNAL_EVENTS))


def test_continuous_dispatch_is_predicted_by_its_own_formula(tmp_path):
    one = replace(SMALL, shape=replace(SMALL.shape, dispatch=Continuous(depth=14)))
    page = summary(journal(tmp_path / "journal", one, simulated(one)[1])).splitlines()

    assert row(page, "Staleness", "predicted").endswith("in the long run, (Q + R)/B + (mu - 1)/2")
    assert row(page, "Staleness", "identity").endswith("survivors + 75 lag; exact at")


def test_many_cells_share_rows():
    history = RunHistory(replace(SMALL.shape, num_cells=100))
    history.record(0.0, RunStarted())
    history.record(10.0, RunStarted())
    lines = timeline(history, width=WIDTH)

    assert lines[0].startswith("cells 0-4 ")
    assert lines[19].startswith("cells 95-99 ")
    assert "   0%" == lines[0][-5:]


def test_a_curve_has_its_highest_and_lowest_at_the_side():
    lines = curve([(1, 0.0), (2, 0.5), (3, 1.0)], width=40)

    assert ["1.000 │        ███", "0.000 │▁▁▁ ███ ███"] == [lines[0], lines[5]]
    assert "       step 1    3" == lines[-1]


def test_a_curve_far_from_zero_does_not_begin_there():
    assert "0.890" == curve([(1, 0.9), (2, 1.0)], width=40)[5].split()[0]
    assert "-2.300" == curve([(1, -2.0), (2, 1.0)], width=40)[5].split()[0]
    assert "0.000" == curve([(1, 0.9)], width=40)[5].split()[0]
    assert [] == curve([], width=40)


@pytest.mark.parametrize("many", [1, 2, 39, 200, 5000])
def test_a_curve_fits_into_its_width_and_shows_every_value(many):
    lines = curve([(step + 1, step % 7 / 7) for step in range(many)], width=40)

    assert all(len(line) <= 40 for line in lines)
    assert str(many) == lines[-1].split()[-1]


def test_values_are_squeezed_into_means_of_neighbours():
    assert [1.5, 3.5] == squeezed([1, 2, 3, 4], 2)
    assert [1, 2] == squeezed([1, 2], 2)
    assert pytest.approx(49.5) == sum(squeezed(range(100), 10)) / 10
    assert "▁▅█" == spark([0, 0.5, 1], width=9)
    assert "▄▄" == spark([2, 2], width=9)
    assert "" == spark([], width=9)


def test_parts_of_a_bar_never_exceed_the_whole():
    assert "##--" == bar([(2, "#"), (9, "-")], whole=4, width=4)
    assert "####" == bar([(7, "#"), (9, "-")], whole=4, width=4)
    assert "" == bar([(7, "#")], whole=0, width=4)


def test_times_and_sizes_are_short():
    assert ["0.4 s", "42 s", "2.5 min", "42 min", "3.5 h", "3.0 days"] == [
        spoken(one) for one in (0.4, 42, 150, 2520, 12600, 259200)
    ]
    assert ["0:07", "2:03", "1:00:00", "123:00:00"] == [
        clock(one) for one in (7.9, 123, 3600, 442800)
    ]
    assert ["0 bytes", "999 bytes", "1.0 kB", "270 MB", "2.5 GB"] == [
        sized(one) for one in (0, 999, 1000, 270e6, 2.5e9)
    ]
