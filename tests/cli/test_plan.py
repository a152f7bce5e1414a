"""`gyre plan`: what the page shows, what it takes, and how it refuses nonsense."""

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SHELL = re.compile(r"^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)
TEXT = re.compile(r"^```text\n(.*?)^```", re.MULTILINE | re.DOTALL)
PAGE = (ROOT / "docs" / "scheduler.md").read_text().partition("\n## Placements")[0]
FEW = ("--cells", 4, "--capacity", 16, "--hours", 1, "--groups-per-batch", 8, "--steps", 4)

FILE = """
[schedule]
groups_per_batch = 4
executions_per_group = 4
steps_per_burst = 2
steps = 4
extra_dispatch = 0.5

[cells]
count = 4
capacity = 8
nodes = 2

[work]
quantiles = [[0, 0.5], [0.5, 1.0], [1, 2.0]]

[deadlines]
harness_h = 3
overall_h = 3

[costs]
groups_per_node_hour = 4
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "one.toml"
    path.write_text(FILE)
    return path


def planned(gyre, *arguments):
    done = gyre("plan", *arguments, "--json")

    assert (0, "") == (done.returncode, done.stderr)
    return json.loads(done.stdout)


def pairs(found):
    return [(one["extra_dispatch"], one["steps_per_burst"]) for one in found["options"]]


def commands():
    return [line for block in SHELL.findall(PAGE) for line in block.splitlines()]


def test_the_page_shows_what_is_printed(gyre):
    (shown,) = TEXT.findall(PAGE)
    done = gyre(*commands()[0].split()[1:])

    assert (0, shown, "") == (done.returncode, done.stdout, done.stderr)
    assert all(len(line) <= 80 for line in shown.splitlines())


@pytest.mark.parametrize("command", commands()[1:])
def test_every_command_of_the_page_works(gyre, monkeypatch, command):
    monkeypatch.chdir(ROOT)
    done = gyre(*command.split()[1:], "--steps", "3")

    assert (0, "") == (done.returncode, done.stderr)
    assert 1 == sum(line.startswith("*") for line in done.stdout.splitlines())


def test_the_table_and_the_object_agree(gyre):
    found = planned(gyre, *FEW, "--staleness", 1)
    printed = gyre("plan", *FEW, "--staleness", 1).stdout
    (row,) = [line.split() for line in printed.splitlines() if line.startswith("*")]
    (best,) = [one for one in found["options"] if one["best"]]

    assert [(1.0, 1), (0.5, 2), (0.0, 3)] == pairs(found)
    assert [float(row[4]), int(row[5])] == [best["extra_dispatch"], best["steps_per_burst"]]
    assert f"{best['step_h']:.2f}" == row[6]
    assert found["reason"] in " ".join(printed.split())


def test_a_file_says_everything_and_a_value_beside_it_replaces_its_own(gyre, file):
    plain = planned(gyre, file, "--staleness", 1)
    faster = planned(gyre, file, "costs.groups_per_node_hour=40", "--staleness", 1)

    assert [] == plain["notes"]
    assert {8} == {one["layout"]["cell_capacity"] for one in plain["options"]}
    assert faster["options"][0]["step_h"] < plain["options"][0]["step_h"]


def test_a_recorded_run_is_planned_for(gyre, file, tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    recorded = gyre("simulate", file, "schedule.steps=8", "--journal", run / "journal")
    direct = planned(gyre, file, "--staleness", 1, "--steps", 6)
    found = planned(gyre, "--from-journal", run, "--staleness", 1, "--steps", 6)
    cut = planned(gyre, "--from-journal", run / "journal", "cells.count=2", "--staleness", 1)

    assert 0 == recorded.returncode
    assert pairs(direct) == pairs(found)
    for mine, theirs in zip(found["options"], direct["options"], strict=True):
        assert theirs["step_h"] == pytest.approx(mine["step_h"], rel=0.1)
    assert {2} == {one["layout"]["num_cells"] for one in cut["options"]}


def test_sizes_of_cells_are_tried_on_the_same_nodes(gyre, file):
    found = planned(gyre, file, "--nodes-per-cell", "1,4:20", "--staleness", 0.5)
    layouts = [
        [one["layout"][key] for key in ("num_cells", "nodes_per_cell", "cell_capacity")]
        for one in found["options"]
    ]

    assert [[8, 1, 4]] * 2 + [[2, 4, 20]] * 2 == layouts


def test_the_seed_decides(gyre, file):
    first, again, other = (
        planned(gyre, file, "--staleness", 1, "--seed", seed) for seed in (1, 1, 2)
    )

    assert first == again
    assert first["options"] != other["options"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "expected CONFIG, --from-journal, or --cells, --capacity and --hours"),
        (["--hours", 1], "expected --cells and --capacity, or --nodes and --nodes-per-cell"),
        ([*FEW, "--cells", 0], "num_cells: 0 is too few; the least is 1"),
        ([*FEW, "--capacity", -4], "cell_capacity: -4 is too few; the least is 1"),
        ([*FEW, "--hours", "nan"], "hours: above 0, not nan"),
        ([*FEW, "--groups-per-batch", 0], "groups_per_batch: 0 is too few; the least is 1"),
        ([*FEW, "--groups-per-node-hour", -1], "groups per node hour: above 0, not -1"),
        ([*FEW, "--nodes", -3], "nodes per cell: above 0, not -0.75"),
        ([*FEW, "--steps", 0], "steps: at least 1, not 0"),
        ([*FEW, "--seed", -1], "seed: not below 0, not -1"),
        ([*FEW, "--nodes-per-cell", "3"], "4 nodes make no whole number of cells of 3"),
        ([*FEW, "--nodes-per-cell", "2:"], "--nodes-per-cell 2:: expected SIZE or SIZE:CAPACITY"),
        ([*FEW, "--nodes-per-cell", ""], "expected SIZE or SIZE:CAPACITY"),
        (["nowhere.toml"], "nowhere.toml: expected a TOML file: No such file or directory"),
        (["cells.count=3"], "cells.count=3: there is no file whose value it could replace"),
        (["FILE", "--hours", 2], "--hours: the file or journal says it; use section.key=value"),
        (["FILE", "--nodes", 8], "--nodes 8: in cells of which size? --nodes-per-cell says"),
        (["FILE", "--from-journal", "x"], "--from-journal takes the place of a file"),
        (["FILE", "cells.cuont=3"], "cells.cuont: unknown key; known here: capacity, count"),
        (["FILE", "cells.count"], "cells.count: expected section.key=value"),
        (["FILE", "schedule.placement=async"], "cells.standalone: none"),
        (["--from-journal", "nowhere"], "nowhere: no journal that can be read: No such file"),
        (["--from-journal", "FILE"], "not a run journal: it does not begin with GYREJRNL"),
    ],
)
def test_nonsense_is_refused_by_name(gyre, file, arguments, says):
    arguments = [file if one == "FILE" else one for one in arguments]
    done = gyre("plan", *arguments, "--staleness", 1)

    assert (2, "") == (done.returncode, done.stdout)
    assert done.stderr.startswith("gyre plan: ")
    assert says in done.stderr
    assert 1 == done.stderr.count("\n")


@pytest.mark.parametrize("staleness", ["many", "-1", "1e999999999", "nan", "1/0", "", "1000000000"])
def test_a_staleness_that_is_no_number_is_refused(gyre, staleness):
    done = gyre("plan", *FEW, f"--staleness={staleness}")

    assert (2, "") == (done.returncode, done.stdout)
    assert f"--staleness {staleness}: expected a number of versions" in done.stderr


@pytest.mark.parametrize(
    ("staleness", "says"),
    [("0.3", "nearest: 0.25 or 0.375"), ("100", "a mean from 0 to 64 versions, not 100")],
)
def test_a_staleness_that_no_pair_meets_is_refused_with_what_is_near(gyre, staleness, says):
    done = gyre("plan", *FEW, "--staleness", staleness)

    assert (2, "") == (done.returncode, done.stdout)
    assert says in done.stderr


def test_a_target_must_be_given(gyre):
    assert 2 == gyre("plan", *FEW).returncode


@pytest.mark.parametrize(
    "option",
    [
        "--groups-per-batch",
        "--executions-per-group",
        "--steps",
        "--cells",
        "--capacity",
        "--nodes",
    ],
)
@pytest.mark.parametrize("value", ["9" * 50, "99999999", "many"])
def test_more_than_a_simulation_can_hold_is_refused_at_once(gyre, option, value):
    given = ["--staleness", "1", "--cells", "2", "--capacity", "16", "--hours", "1"]
    done = gyre("plan", *given, option, value)

    assert (2, "") == (done.returncode, done.stdout)
    assert f"{option}: expected a whole number of at most 100,000; found '{value}'" in done.stderr
