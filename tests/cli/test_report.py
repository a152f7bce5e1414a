"""The command that writes a report: where it goes, what it says, and what it refuses."""

import json
import subprocess
import sys

import pytest
from tests.observability.support.journals import SMALL, simulated, told

from gyre.journal.journal import Durability, Journal, write
from gyre.observability.report.build import NUMBERS, PAGE, STEPS
from gyre.scheduler.replay import JOURNAL_EVENTS
from gyre.simulator.from_journal import header_of

HEADER = header_of(SMALL, started_at=5.0)
NO_MATPLOTLIB = """
import sys
sys.modules["matplotlib"] = None
from gyre.cli.main import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture(scope="module")
def facts():
    return list(told(simulated(SMALL)[1]))


@pytest.fixture
def run(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    return folder


def test_a_report_lies_in_the_run_that_it_is_of_and_says_how_that_stands(gyre, run, facts):
    """First of a run that goes on, then of the same when nobody works on it any more."""
    report = run / "report"
    with Journal.create(
        run / "journal", HEADER, kinds=JOURNAL_EVENTS, durability=Durability.PROCESS
    ) as journal:
        for now, fact in facts[:700]:
            journal.append(fact, now=now)
        journal.commit()
        running = gyre("report", run)
    (report / "trees.png").write_bytes(b"of an older report")
    silent = gyre("report", run)
    page = (report / PAGE).read_text()

    assert (0, 0) == (running.returncode, silent.returncode)
    assert "is still running" in running.stdout
    assert "it was killed or interrupted" in silent.stdout
    assert "it was killed or interrupted" in page
    assert f"gyre report: {report / PAGE}" == silent.stdout.splitlines()[-1]
    assert {PAGE, NUMBERS, STEPS, "timeline.png"} < {one.name for one in report.iterdir()}
    assert "elastic: ends within its first burst; nothing to simulate" in page
    assert not (report / "trees.png").exists()


def test_the_work_is_simulated_under_every_placement(gyre, tmp_path, facts):
    """As far as its first whole burst goes."""
    write(tmp_path / "part", HEADER, facts[:900], kinds=JOURNAL_EVENTS)
    done = gyre("report", tmp_path / "part", "--out", tmp_path / "out")
    (found,) = json.loads((tmp_path / "out" / NUMBERS).read_text())["runs"]
    minutes = {one["placement"]: one["minutes"] for one in found["compared"]}

    assert (0, "") == (done.returncode, done.stderr)
    assert "A simulated run of 3 of 12 steps" in done.stdout
    assert ["elastic", "async", "colocate"] == list(minutes)
    assert minutes["async"] / minutes["elastic"] == found["numbers"]["async against elastic"] > 1
    assert 3 * 8 == found["numbers"]["groups trained"]
    assert (tmp_path / "out" / "speedup.png").is_file()


def test_a_run_in_which_nothing_happened_makes_no_report(gyre, tmp_path, run):
    write(run / "journal", HEADER, [], kinds=JOURNAL_EVENTS)
    nothing = gyre("report", run)
    nowhere = gyre("report", tmp_path / "nowhere")

    assert (2, f"gyre report: {run}: nothing is recorded yet\n") == (
        nothing.returncode,
        nothing.stderr,
    )
    assert not (run / "report").exists()
    assert (2, "", f"gyre report: {tmp_path / 'nowhere'}: expected the folder of a run, or a "
            "journal\n") == (nowhere.returncode, nowhere.stdout, nowhere.stderr)  # fmt: skip


def test_what_is_no_report_is_not_written_over(gyre, tmp_path, run, facts):
    write(run / "journal", HEADER, facts[:300], kinds=JOURNAL_EVENTS)
    (tmp_path / "file").write_text("mine")
    for place, what, why in (
        (tmp_path, tmp_path, "holds something else than a report; --out names another"),
        (tmp_path / "file", tmp_path / "file", "expected a folder, found a file"),
        (tmp_path / "file" / "below", tmp_path / "file", "expected a folder, found a file"),
    ):
        done = gyre("report", run, "--out", place)

        assert (2, f"gyre report: {what}: {why}\n") == (done.returncode, done.stderr)
    assert {"run", "file"} == {one.name for one in tmp_path.iterdir()}


def test_without_matplotlib_a_report_says_what_to_install(run, facts):
    write(run / "journal", HEADER, facts[:300], kinds=JOURNAL_EVENTS)
    command = [sys.executable, "-c", NO_MATPLOTLIB, "report", str(run)]
    done = subprocess.run(command, capture_output=True, text=True)

    expected = "gyre report: pictures need matplotlib: pip install 'gyre-rl[plot]'\n"
    assert (2, "", expected) == (done.returncode, done.stdout, done.stderr)
