"""`gyre simulate`: what it prints and writes, what it refuses, and how it ends."""

import json
import os
import pty
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from tests.waiting import PATIENCE_S

from gyre.controller.run_dir import standing
from gyre.journal.journal import read, write
from gyre.scheduler.replay import EVENTS
from gyre.simulator.paper import TABLE
from gyre.simulator.world import run

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "simulate.toml"

NO_MATPLOTLIB = """
import sys
sys.modules["matplotlib"] = None
from gyre.cli.main import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture
def small(tmp_path):
    """The example, over three steps."""
    path = tmp_path / "small.toml"
    path.write_text(EXAMPLE.read_text().replace("steps = 12", "steps = 3"))
    return path


def printed(gyre, *arguments):
    done = gyre("simulate", *arguments, "--json", "-")
    assert (0, "") == (done.returncode, done.stderr)
    return json.loads(done.stdout)


def hours(found):
    return {one["name"]: [run["hours"] for run in one["records"]] for one in found["scenarios"]}


def test_the_example_prints_a_table_and_a_timeline(gyre):
    done = gyre("simulate", EXAMPLE)
    lines = done.stdout.splitlines()

    assert (0, "", "small, seed 0") == (done.returncode, done.stderr, lines[0])
    assert 4 == sum(line.startswith("cell ") for line in lines)
    assert any(line.startswith("waterlevel  ") for line in lines)
    assert [] == [line for line in lines if len(line) > 80]


def test_overrides_take_the_place_of_the_file_s_values(gyre, small):
    done = gyre("simulate", small, "cells.count=6", "schedule.placement=colocate", "seed=4")

    assert "small, seed 4" == done.stdout.splitlines()[0]
    assert "6 cells of 40 executions; 6 nodes" in done.stdout
    assert "colocate; phi 0.5; mu 3" in done.stdout


def test_a_preset_goes_by_its_name(gyre):
    assert {"A0": [run(TABLE["A0"]).hours]} == hours(printed(gyre, "A0"))


def test_seeds_follow_each_other_and_have_a_spread(gyre, small):
    found = printed(gyre, small, "--seed", 5, "--seeds", 3)
    alone = printed(gyre, small, "seed=6")

    assert [5, 6, 7] == [one["seed"] for one in found["scenarios"][0]["records"]]
    assert hours(found)["small"][1] == hours(alone)["small"][0]
    assert 0 < found["scenarios"][0]["hours"]["deviation"]
    assert "; over 3 seeds " in gyre("simulate", small, "--seeds", 3).stdout


def test_jobs_change_nothing_but_the_time(gyre, program, small):
    alone = printed(gyre, small, "--seeds", 2)

    # In a process of its own, because what starts others stays as long as its process.
    assert alone == printed(program, small, "--seeds", 2, "--jobs", 2)


def test_placements_stand_beside_each_other(gyre, small):
    done = gyre("simulate", small, "--compare")

    assert ["elastic", "async", "colocate"] == list(hours(printed(gyre, small, "--compare")))
    assert "async, whole bursts; phi 1.5; mu 1; 2 cells + 2 alone" in done.stdout
    assert 1 == done.stdout.count("alone 2")


def test_a_placement_that_cannot_be_is_said_not_hidden(gyre, small):
    done = gyre("simulate", small, "cells.count=1", "cells.capacity=300", "--compare")

    assert 0 == done.returncode
    assert "async: not possible here: standalone_capacities: none" in done.stdout
    assert "colocate" in done.stdout


def test_policies_stand_beside_the_file_as_it_is(gyre, small):
    names = ("overcommit 1.5", "shared prefixes")
    found = hours(printed(gyre, small, "--policy", names[0], "--policy", names[1]))

    assert ["small", *names] == list(found)
    assert found["small"] > found["shared prefixes"]


def test_json_and_pictures_are_written_beside_the_table(gyre, small, tmp_path):
    done = gyre("simulate", small, "--json", tmp_path / "a.json", "--plot", tmp_path / "a.png")
    gyre("simulate", small, "--plot", tmp_path / "a.svg")

    assert done.stdout.startswith("small, seed 0\n")
    assert 1 == json.loads((tmp_path / "a.json").read_text())["format"]
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    assert b"<svg" in (tmp_path / "a.svg").read_bytes()
    assert {"small.toml", "a.json", "a.png", "a.svg"} == {one.name for one in tmp_path.iterdir()}


# Journals


def test_a_journal_can_be_asked_what_if(gyre, small, tmp_path):
    made = printed(gyre, small, "--journal", tmp_path / "journal")
    again = printed(gyre, "--from-journal", tmp_path)
    other = gyre("simulate", "--from-journal", tmp_path / "journal", "schedule.placement=colocate")
    (first,), (second,) = hours(made)["small"], hours(again)["small"]

    assert second == pytest.approx(first, rel=0.05)
    assert (0, "") == (other.returncode, other.stderr)
    assert "colocate; phi 0.5; mu 3" in other.stdout


def test_a_name_in_a_journal_does_not_steer_the_terminal(gyre, small, tmp_path):
    """Nor in what `gyre simulate`, `gyre report` and `gyre status` say of a run from elsewhere."""
    journal = tmp_path / "run" / "journal"
    journal.parent.mkdir()
    gyre("simulate", small, "--journal", journal)
    found = read(journal, kinds=EVENTS)
    renamed = replace(found.header, run="a\x1b]0;title\x07b")
    journal.unlink()
    write(journal, renamed, found.facts(EVENTS), kinds=EVENTS)
    said = [
        gyre("simulate", "--from-journal", journal),
        gyre("report", journal.parent, "--out", tmp_path / "report"),
        gyre("status", journal.parent),
    ]

    assert [0, 0, 0] == [one.returncode for one in said]
    assert not any("\x1b]" in one.stdout + one.stderr for one in said)
    assert "\x1b]" not in str(standing(journal.parent))


def test_a_journal_holds_one_run_and_replaces_none(gyre, small, tmp_path):
    for option in (["--seeds", "2"], ["--compare"], ["--policy", "longest first"]):
        done = gyre("simulate", small, "--journal", tmp_path / "journal", *option)
        assert "--journal: holds one run" in done.stderr
    gyre("simulate", small, "--journal", tmp_path / "journal")
    before = (tmp_path / "journal").read_bytes()
    done = gyre("simulate", small, "--journal", tmp_path / "journal")

    assert (2, "") == (done.returncode, done.stdout)
    assert "is there already" in done.stderr
    assert before == (tmp_path / "journal").read_bytes()


def test_a_torn_journal_is_read_as_far_as_it_goes_and_said_so(gyre, small, tmp_path):
    path = tmp_path / "journal"
    gyre("simulate", small, "--journal", path)
    path.write_bytes(path.read_bytes()[:-7])
    done = gyre("simulate", "--from-journal", path)

    assert 0 == done.returncode
    assert "torn" in done.stdout.splitlines()[-1]


# Refusals


def test_all_mistakes_are_said_at_once_with_path_and_expectation(gyre, small):
    overrides = ["schedul.steps=3", "cells.count=many", "nonsense", "costs.update_s=true"]
    done = gyre("simulate", small, *overrides)

    assert (2, "") == (done.returncode, done.stdout)
    assert done.stderr.startswith(f"gyre simulate: {small}: ")
    for expected in (
        "nonsense: expected section.key=value",
        "schedul: unknown key; known here: ",
        "cells.count: a whole number, not 'many'",
        "costs.update_s: a number, not True",
    ):
        assert expected in done.stderr


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ([], "expected a TOML file, a preset, `paper`, or --from-journal RUN"),
        (["nowhere.toml"], "nowhere.toml: expected a TOML file, a preset or `paper`: No such"),
        (["bad.toml"], "bad.toml: not TOML: "),
        (["bytes.toml"], "bytes.toml: not TOML: "),
        (["."], ".: expected a TOML file, a preset or `paper`: Is a directory"),
        (["E0", "seed=3"], "E0: a preset takes no seed=3; write a file to change it"),
        (["E0", "--seed", "-1"], "seed: not below 0, not -1"),
        (["E0", "--policy", "faster"], "--policy faster: unknown; known: as published; "),
        (["E0", "--plot", "a.gif"], "--plot a.gif: expected a name that ends in .png or .svg"),
        (["E0", "--plot", "no/a.png"], "--plot no/a.png: expected a file that can be made"),
        (["E0", "--json", "."], "--json .: expected a file that can be made, found a folder"),
        (["--from-journal", "nowhere"], "nowhere: no journal that can be read: "),
        (["--from-journal", "bad.toml"], "bad.toml: "),
        (["paper", "a.b=1", "--compare"], "paper: is what it is; leave section.key=value, --com"),
    ],
    ids=lambda one: " ".join(one) if isinstance(one, list) else "",
)
def test_what_makes_no_sense_is_refused_in_one_line(gyre, tmp_path, monkeypatch, arguments, reason):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.toml").write_text("steps = = 3\n")
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe\x00")
    done = gyre("simulate", *arguments)

    assert (2, "") == (done.returncode, done.stdout)
    assert 1 == len(done.stderr.splitlines())
    assert f"gyre simulate: {reason}" in done.stderr
    assert {"bad.toml", "bytes.toml"} == {one.name for one in tmp_path.iterdir()}


@pytest.mark.parametrize("option", ["--seeds", "--jobs"])
@pytest.mark.parametrize("number", ["0", "-3", "some"])
def test_counts_are_one_or_more(gyre, option, number):
    done = gyre("simulate", "E0", f"{option}={number}")

    assert 2 == done.returncode
    assert f"expected a number of 1 or more; found '{number}'" in done.stderr


def test_without_matplotlib_a_plot_says_what_to_install(small, tmp_path):
    command = [sys.executable, "-c", NO_MATPLOTLIB, "simulate", str(small)]
    refused = subprocess.run(
        [*command, "--plot", str(tmp_path / "a.png")], capture_output=True, text=True
    )
    other = subprocess.run(command, capture_output=True)

    expected = "gyre simulate: --plot needs matplotlib: pip install 'gyre-rl[plot]'\n"
    assert (2, "", expected) == (refused.returncode, refused.stdout, refused.stderr)
    assert 0 == other.returncode


# Progress and interrupts


def test_progress_is_silent_unless_asked_for(gyre, small):
    done = gyre("simulate", small, "--progress", "--seeds", 2)
    lines = done.stderr.splitlines()

    assert "" == gyre("simulate", small).stderr
    assert 6 == len(lines)
    assert lines[0].startswith("run 1 of 2, small seed 0: step 1 of 3, ")
    assert lines[5].startswith("run 2 of 2, small seed 1: step 3 of 3, ")


def test_a_terminal_sees_progress_in_one_line_that_is_gone_at_the_end(small):
    ours, theirs = pty.openpty()
    done = subprocess.run(
        [sys.executable, "-m", "gyre", "simulate", str(small)],
        stdout=subprocess.DEVNULL,
        stderr=theirs,
        timeout=PATIENCE_S,
    )
    os.close(theirs)
    said = b""
    # What was written last may come a moment later; Linux says so when all of it was read.
    with suppress(OSError):
        while data := os.read(ours, 65536):
            said += data
    said = said.decode()
    os.close(ours)

    assert 0 == done.returncode
    assert 3 == said.count("of 3, ")
    assert "\n" not in said
    assert said.endswith("\r\x1b[K")


INTERRUPTED = (130, -signal.SIGINT)
"""The same to a shell; Python makes it the second where the signal comes while a module defines
its classes."""


@pytest.mark.slow
@pytest.mark.parametrize("options", [["E0"], ["E0", "--jobs=2"], ["paper"]], ids=" ".join)
def test_an_interrupt_ends_it_cleanly(options):
    """In the middle of work for many minutes, so that it is not over before it is interrupted."""
    child = subprocess.Popen(
        [sys.executable, "-m", "gyre", "simulate", *options, "--seeds=4000", "--progress"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    first = child.stderr.readline()
    os.killpg(child.pid, signal.SIGINT)
    out, err = child.communicate(timeout=PATIENCE_S)

    assert first.startswith("run 1 of ")
    assert child.returncode in INTERRUPTED
    assert "" == out
    assert "Traceback" not in err
