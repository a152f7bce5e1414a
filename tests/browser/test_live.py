"""A real run in a real browser: as it goes, and then its folder again as what was recorded."""

import json
import os
import re
import signal

import pytest
from tests.browser.books import Books, Recorded
from tests.browser.serving import training, watching
from tests.browser.shown import Shown, calls_in, number, rows_of, seconds
from tests.waiting import PATIENCE_S

from gyre.controller.controller import JOURNAL_EVENTS
from gyre.journal.journal import path_of, read
from gyre.observability.dashboard.panels_cells import Cause
from gyre.scheduler.messages import CellDied, StepTaken
from gyre.storage import call_log
from gyre.types.run_events import UseMeasured

SHORT = ("schedule.steps=6", "schedule.groups_per_batch=4", "cells.count=3")
PATIENT = ("deadlines.agent_s=1800", "deadlines.overall_s=3600", "schedule.lease_s=900")
STRUCK = 2
"""A cell that is killed on the way."""
GATES = (8, 16)
"""Groups from which on agents wait until somebody has looked; two steps come before each."""
WAITS = """
group=${PWD##*/attempts/g}
group=${group%%[.-]*}
for gate in GATES; do
    while [ "$group" -ge $gate ] && [ ! -e "FOLDER/$gate" ]; do sleep 0.05; done
done
exec "$@"
"""
AGENT = ("python3", "-I", "-S", "agent.py", "{task}", "{instruction}")


def waiting(folder):
    """The setting by which agents wait for gates to be opened in a folder."""
    script = WAITS.replace("GATES", " ".join(map(str, GATES))).replace("FOLDER", str(folder))
    (folder / "waits.sh").write_text(script)
    return f"harness.argv={json.dumps(['sh', str(folder / 'waits.sh'), *AGENT])}"


def has(folder, kind, more_than=0):
    """Whether a run's journal has so many facts of a kind by now."""
    reading = read(path_of(folder), kinds=JOURNAL_EVENTS) if path_of(folder).exists() else None
    return reading is not None and len(reading.facts((kind,))) > more_than


@pytest.fixture(scope="module")
def lived(browser, tmp_path_factory):
    """A run to its end, and what a page that was opened at its beginning showed meanwhile."""
    gates = tmp_path_factory.mktemp("browser")
    folder = gates / "run"
    given = (*SHORT, *PATIENT, waiting(gates))
    with training("examples/quickstart.toml", folder, *given) as train:
        context = browser.new_context(viewport={"width": 1280, "height": 900})
        link = train.wait_link()
        # However long a browser takes to open a page, the run is not over by then.
        with train.held():
            shown = Shown(context, link)
            shown.page.evaluate("() => { window.opened = true; }")
        seen = {"journal": [], "cells": set()}

        def compare():
            """The journal so far is what the page shows of it by itself."""
            books = Books(folder)
            seen["journal"].append(books.tiles(books.end_s))
            shown.wait(seen["journal"][-1], shown.tiles)
            shown.wait(books.cells(books.end_s), shown.cells)
            seen["cells"] |= set(shown.cells().values())
            return len(books.facts(StepTaken))

        shown.wait_until(lambda: has(folder, StepTaken))
        with train.held():
            num_steps = compare()
        os.kill(int((folder / "pids" / f"cell-{STRUCK}").read_text()), signal.SIGKILL)
        shown.wait_until(lambda: has(folder, CellDied))
        (gates / str(GATES[0])).touch()
        shown.wait_until(lambda: has(folder, StepTaken, more_than=num_steps))
        with train.held():
            compare()
            faults = shown.panel("faults")
            shown.wait_until(lambda: f"cell {STRUCK} died" in faults.inner_text())
            seen["news"] = shown.page.locator("#lines li").all_text_contents()
            seen["is_the_same"] = shown.page.evaluate("() => window.opened") is True
            seen["asked"], seen["strangers"] = list(shown.asked), shown.strangers
            seen["complaints"] = list(shown.complaints)
        (gates / str(GATES[1])).touch()
        context.close()
        seen["status"] = train.process.wait(PATIENCE_S)
        seen["said"] = train.said
    return folder, seen


@pytest.fixture(scope="module")
def run(lived):
    return lived[0]


@pytest.fixture(scope="module")
def books(run):
    return Books(run)


@pytest.fixture(scope="module")
def link(run):
    with watching(run) as found:
        yield found


@pytest.fixture(scope="module")
def page(link, opened_once):
    """The run again, from its folder."""
    return opened_once(link)


@pytest.fixture
def recorded(page):
    """At its end, as when it was opened."""
    page.go("view=run")
    return page


def test_a_run_that_goes_is_shown_as_it_goes(lived):
    _, seen = lived
    before, after = seen["journal"]

    assert int(before["step"][0]) < int(after["step"][0])
    assert "serving" in seen["cells"]
    assert any("step 1" in line for line in seen["news"]), seen["news"]
    assert any(f"cell {STRUCK} died" in line for line in seen["news"]), seen["news"]


def test_it_is_told_by_one_stream_of_events_without_loading_anything_again(lived):
    _, seen = lived

    assert seen["is_the_same"]
    # The link with its key leads on to the address without it.
    assert 2 == sum("/api/" not in one and "/page/" not in one for one in seen["asked"])
    assert 1 == sum(one.endswith("/api/news") for one in seen["asked"])
    assert ([], []) == (seen["strangers"], seen["complaints"])


def test_the_run_is_none_the_worse_for_it(lived, books):
    _, seen = lived

    assert 0 == seen["status"], seen["said"]
    assert [STRUCK] == [cell for _, cell in books.deaths()]
    assert "6 of 6" == books.tiles(books.end_s)["step"]


def test_what_the_run_used_is_shown_as_it_was_measured(recorded, run):
    found = [
        (now, one) for now, one in read(path_of(run), kinds=JOURNAL_EVENTS).facts((UseMeasured,))
    ]
    head, rows = recorded.table("use", "Processors in use, in cores")
    executions = [one.executions_s / one.seconds for _, one in found]
    shown = [number(row[head.index("executions, cores")]) for row in rows]

    assert executions
    assert max(executions) > 0
    assert {0, 1, 2} == {cell for _, one in found for cell in one.cells}
    assert executions == pytest.approx(shown, rel=0.06, abs=1e-3)
    assert [now for now, _ in found] == pytest.approx(
        [seconds(row[1]) for row in rows], rel=0.01, abs=0.06
    )


def test_the_end_is_as_the_journal_has_it(recorded, books):
    recorded.wait(books.tiles(books.end_s), recorded.tiles)

    assert books.cells(books.end_s) == recorded.cells()
    assert "ended: finished" == recorded.badge()


def test_every_moment_of_a_link_is_as_the_journal_has_it(recorded, books):
    for at in books.moments(0.05, 0.3, 0.5, 0.7, 0.95):
        recorded.go(f"at={at!r}")

        recorded.wait(books.tiles(at), recorded.tiles)
        assert books.cells(at) == recorded.cells()


def test_the_table_of_roles_is_what_cells_did(recorded, books):
    head, rows = recorded.table("roles", "Roles of cells")
    found = [dict(zip(head, row, strict=True)) for row in rows]

    for cell in books.states:
        own = [one for one in found if one["who"].split(",")[0] == f"cell {cell}"]
        expected = books.spans(cell)

        assert [state for *_, state in expected] == [one["state"] for one in own]
        assert [start for start, *_ in expected] == pytest.approx(
            [seconds(one["from"]) for one in own], rel=0.01, abs=0.06
        )


def test_the_reward_of_each_step_is_the_mean_of_what_was_given(recorded, books):
    _, rows = recorded.table("reward", "Reward of steps")

    assert books.rewards() == pytest.approx(
        {int(step): number(reward) for _, step, reward in rows}, abs=6e-4
    )


def test_ages_of_groups_are_counted_as_they_were_consumed(recorded, books):
    head, rows = recorded.table("staleness", "Staleness of trained groups")
    at = head.index("groups")

    assert dict(books.ages()) == {int(row[0]): int(row[at]) for row in rows if number(row[at])}


def test_the_account_of_time_is_whole_and_knows_who_trained(recorded, books):
    head, rows = recorded.table("idle", "Where time went, by cell")
    found = {row[0]: dict(zip(head[1:], map(seconds, row[1:]), strict=True)) for row in rows}
    in_training = ("training", "waiting for rollouts", "waiting for publication")

    for cell in books.states:
        one = {name: value or 0.0 for name, value in found[f"cell {cell}"].items()}
        spent = sum(one[cause.value] for cause in Cause)
        trained = sum(one[name] for name in in_training)

        assert pytest.approx(books.end_s, rel=0.05) == spent
        assert pytest.approx(books.spent_s(cell, "training", "waiting"), abs=0.2) == trained
        assert pytest.approx(books.spent_s(cell, "dead"), abs=0.1) == one["dead"]


def test_a_fault_stands_in_the_table_with_when_it_was_mended(recorded, books):
    head, rows = rows_of(recorded.panel("faults").locator("table"))
    found = [dict(zip(head, row, strict=True)) for row in rows]
    died = [one for one in found if one["what"] == "cell died"]
    ((at, cell),) = books.deaths()

    assert [f"cell {cell}"] == [one["who"] for one in died]
    assert pytest.approx(at, rel=0.01, abs=0.06) == seconds(died[0]["at"])
    away = seconds(died[0]["repaired after"])
    assert pytest.approx(books.spent_s(cell, "dead"), rel=0.02, abs=0.06) == away


def test_executions_are_listed_with_what_each_was_given(recorded, books):
    recorded.go("view=executions")
    region = recorded.page.get_by_role("region", name="Table of executions")
    num = len(books.scores())
    recorded.wait(f"1 to {num} of {num}", recorded.listed)
    head, rows = rows_of(region.locator("table"))
    found = {row[0]: number(row[head.index("score")]) for row in rows}

    assert books.scores() == pytest.approx(found, abs=6e-5)


def test_sizes_of_trees_are_read_while_somebody_looks(recorded, run):
    num = len(list(call_log.logs(run)))
    text = f"Read from {num} sealed call logs of {num} closed executions."
    recorded.wait_until(lambda: text in recorded.panel("trees").inner_text())
    head, rows = recorded.table("trees", "Leaves per tree")

    assert num == sum(number(row[head.index("all")]) for row in rows)


# The tree of one of them


@pytest.fixture(scope="module")
def execution(run):
    """The one with most calls, by its log."""
    return max(map(Recorded, call_log.logs(run)), key=lambda one: len(one.calls))


@pytest.fixture
def tree(recorded, execution):
    """Its tree, come to by the table."""
    recorded.go("view=executions")
    recorded.page.get_by_role("link", name=execution.name, exact=True).click()
    recorded.page.get_by_role("heading", name=execution.name).wait_for()
    return recorded


def test_boxes_hold_every_call_of_the_log(tree, execution):
    rows = tree.boxes()
    found = [call for row in rows for call in calls_in(row["calls"])]

    assert sorted(execution.calls) == sorted(found)
    assert sum(len(one.output) for one in execution.calls.values()) == sum(
        int(number(row["sampled"])) for row in rows if row["calls"] != "preface"
    )


def test_a_box_opens_to_messages_and_tokens_as_they_were_recorded(tree, execution):
    box = next(row for row in tree.boxes() if row["calls"] != "preface")
    tree.choose(int(box["box"]))

    for number_ in calls_in(box["calls"]):
        call = execution.calls[number_]
        assert [list(one) for one in call.told] == tree.told(number_)
        assert [
            (ident, pytest.approx(logprob, rel=1e-3, abs=6e-5), version)
            for ident, logprob, version in zip(
                call.output, call.logprobs, call.versions, strict=True
            )
        ] == tree.tokens(number_)


def test_tokens_can_be_coloured_by_targets_and_the_draw_that_took_them(tree, execution):
    drawn = [row for row in tree.boxes() if row["draws"] not in ("–", "")]
    tree.choose(int(drawn[0]["box"]))
    tree.page.get_by_label("What colours of tokens say").select_option("targets")
    section = tree.section(calls_in(drawn[0]["calls"])[0])
    section.locator(".tok").first.wait_for()

    assert f"of draw {drawn[0]['draws']}" in section.locator(".reply h5").text_content()
    assert section.locator(".tok.target").count() > 0


def test_beside_a_tree_stand_the_assessment_and_what_became_of_the_files(tree, execution):
    left = tree.page.get_by_role("region", name="What it left behind")
    left.get_by_role("heading", name="Outcome").wait_for()
    head, rows = rows_of(left.locator("table", has_text="Assessments"))
    found = [dict(zip(head, row, strict=True)) for row in rows]

    assert execution.assessments == [
        (one["status"], number(one["score"]), one["state"]) for one in found
    ]
    changed = left.locator("details.file")
    for at, (name, lines) in enumerate(sorted(execution.changed.items())):
        shown = changed.nth(at).locator("pre").text_content().splitlines()

        assert name in changed.nth(at).locator("summary").text_content()
        assert lines == [line[1:] for line in shown if re.match(r"\+(?!\+\+)", line)]
    assert len(execution.changed) == changed.count()
