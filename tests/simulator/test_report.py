"""Records as tables, JSON and timelines: what is said is what happened, and it fits a screen."""

import json
import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.simulator.support.scenes import scenario

from gyre.scheduler.messages import StopReason
from gyre.scheduler.policies import Async
from gyre.simulator.report import (
    FORMAT,
    MOST_LINES,
    SIGNS,
    WIDTH,
    MeanAndSpread,
    ScenarioRuns,
    as_json,
    beside,
    record_json,
    table,
    timeline,
)
from gyre.simulator.result import Role, RoleInterval, SimulationResult
from gyre.simulator.world import run

MARGIN = len("waterlevel") + 2


def ran(*records, name="scene", one=None):
    one = one or scenario()
    return ScenarioRuns(name=name, scenario=one, records=records or (run(one),))


def said(lines, title):
    """What the table says under a title."""
    (found,) = [line for line in lines if line.strip().startswith(f"{title} ")]
    return found.strip().removeprefix(title).strip()


def unfinished(record):
    return replace(record, stopped=StopReason.TOO_MANY_VOID)


# Tables


def test_the_table_says_hours_shares_and_staleness():
    """Two hours on one cell of one node, then one of training."""
    lines = table(ran())

    assert "scene, seed 0" == lines[0]
    assert "1 cell of 2 executions; 1 nodes" == said(lines, "machines")
    assert "elastic; phi 0; mu 1" == said(lines, "schedule")
    assert "1 group of 2 a batch; 1 step" == said(lines, "batches")
    assert "3.00 to the last step" == said(lines, "hours")
    # Three of four slot hours were used.
    assert "rollout busy 50.0%, rollout idle 16.7%, training busy 33.3%" == said(lines, "nodes")
    assert "mean 0.00, 0.00 predicted for the long run" == said(lines, "staleness")
    assert "0: 1 group" == said(lines, "by age")
    assert "holds after every step" == said(lines, "identity")
    assert "1 admitted, 1 trained, 0 void" == said(lines, "groups")


def test_a_broken_identity_is_not_passed_over():
    record = run(scenario())
    step = record.steps[0]
    wrong = replace(step.identity, consumed=step.identity.consumed + 1)
    lines = table(ran(replace(record, steps=(replace(step, identity=wrong),))))

    assert "BROKEN" == said(lines, "identity")


@pytest.mark.parametrize(
    ("stopped", "how"),
    [(StopReason.TOO_MANY_VOID, "too-many-void"), (None, "there was nothing left to wait for")],
)
def test_a_run_that_did_not_finish_is_never_taken_for_a_fast_one(stopped, how):
    record = run(scenario())
    short = ran(replace(record, stopped=stopped), name="short")

    assert f"NOT FINISHED: {how}" in said(table(short), "hours")
    (line,) = [line for line in beside([ran(), short])[:3] if "short" in line]
    assert f"NOT FINISHED: {how}" in line
    assert "NOT FINISHED" not in "\n".join(beside([ran(), ran(name="whole")]))


def test_several_seeds_have_a_mean_and_a_spread():
    record = run(scenario())
    later = replace(record.steps[0], at_s=5 * 3600)
    both = ran(record, replace(record, steps=(later,)))

    assert MeanAndSpread(mean=4.0, deviation=pytest.approx(2**0.5)) == both.hours
    assert "over 2 seeds 4.00 ± 1.41" in said(table(both), "hours")
    assert None is ran().hours.deviation


def test_scenarios_stand_beside_each_other_with_the_first_as_the_measure():
    fast, slow = scenario([(1.0, 1.0)]), scenario([(3.0, 3.0)])
    lines = beside([ran(one=fast, name="fast"), ran(one=slow, name="slow")])

    assert ["fast", "2.00", "1.00x"] == lines[1].split()[:3]
    assert ["slow", "4.00", "0.50x"] == lines[2].split()[:3]


def test_steps_of_a_long_run_share_lines():
    long = run(scenario(steps=30))
    lines = table(ran(long))
    at = next(number for number, line in enumerate(lines) if line.startswith("  step "))
    steps = [line.split()[0] for line in lines[at + 1 :]]

    assert ["1-3", "4-6"] == steps[:2]
    assert "28-30" == steps[-1]
    assert lines[-1].split()[1] == f"{long.hours:.2f}"


def test_a_run_without_a_step_has_a_table_too():
    empty = replace(run(scenario()), steps=(), levels=(), roles=((),), end_s=0.0)

    assert "no step was taken" == table(ran(empty))[-1]
    assert timeline(empty)


# JSON


def test_json_holds_every_field_under_its_name():
    """Keys are for programs: one that goes missing or changes its name breaks them."""
    found = json.loads(json.dumps(as_json([ran()]), allow_nan=False))
    (one,) = found["scenarios"]
    (record,) = one["records"]

    assert (1, FORMAT) == (FORMAT, found["format"])
    assert {"name", "hours", "records"} == set(one)
    assert set(SimulationResult.__slots__) | {
        "hours",
        "identity_holds",
        "busy_share",
        "interpolated_staleness",
    } == set(record)
    assert {
        "number", "at_s", "took_s", "staleness", "num_void", "num_cells", "training_cell_s",
        "idle_cell_s", "identity",
    } == set(record["steps"][0])  # fmt: skip
    assert {"start_s": 0.0, "end_s": 7200.0, "role": "rollout"} == record["roles"][0][0]
    assert ("finished", 3.0, [[0, 1]]) == (
        record["stopped"],
        record["hours"],
        record["staleness"]["histogram"],
    )
    assert {"at_s", "waterlevel", "running", "capacity", "num_ready"} == set(record["levels"][0])


def test_a_record_is_the_same_json_every_time():
    one = scenario([(1.0, 2.0), (0.5, 1.5)], steps=4)

    assert json.dumps(record_json(run(one))) == json.dumps(record_json(run(one)))


# Timelines


def test_a_timeline_shows_roles_steps_and_waterlevel():
    """Two hours of rollout and one of training in thirty slices."""
    lines = timeline(run(scenario()), width=MARGIN + 30)

    assert f"cell 0      {'·' * 20}{'█' * 10}" == lines[0]
    assert f"steps       {' ' * 29}+" == lines[1]
    assert f"waterlevel  {'█' * 10}{'▄' * 10}" == lines[2]
    assert f"            0{'3.00 h':>29}" == lines[3]
    assert "· rollout  █ training" == lines[4].strip()
    assert "+ a step  waterlevel up to 2" == lines[5].strip()


def test_a_slice_shows_the_role_that_most_of_it_went_to():
    record = run(scenario())
    parts = [(0.0, 0.6, Role.TRAINING), (0.6, 1.2, Role.ROLLOUT), (1.2, 2.0, Role.DEAD)]
    roles = tuple(RoleInterval(start_s=a, end_s=b, role=role) for a, b, role in parts)
    lines = timeline(replace(record, roles=(roles,), end_s=2.0), width=MARGIN + 2)

    assert "cell 0      █x" == lines[0]
    assert ["█ training", "x dead", "+ a step"] == [line.strip() for line in lines[4:7]]


def test_one_scale_leaves_the_shorter_run_blank_at_its_end():
    record = run(scenario())
    lines = timeline(record, until_s=2 * record.end_s, width=MARGIN + 60)

    assert f"cell 0      {'·' * 20}{'█' * 10}" == lines[0]
    assert lines[3].endswith("6.00 h")


def test_standalone_engines_have_a_line_of_their_own():
    one = scenario(placement=Async(), standalone_capacities=(2,))
    lines = timeline(run(one), standalone=1, width=MARGIN + 30)

    assert f"cell 0      {'█' * 30}" == lines[0]
    assert f"alone 1     {'·' * 30}" == lines[1]


ROLES = st.lists(st.sampled_from(list(Role)), min_size=1, max_size=6)


@given(cells=st.lists(ROLES, min_size=1, max_size=40), end_s=st.floats(1e-3, 1e7))
def test_any_timeline_fits_the_screen_and_shows_every_cell(cells, end_s):
    roles = tuple(
        tuple(
            RoleInterval(
                start_s=end_s * at / len(one), end_s=end_s * (at + 1) / len(one), role=role
            )
            for at, role in enumerate(one)
        )
        for one in cells
    )
    lines = timeline(replace(RECORD, roles=roles, end_s=end_s))
    drawn = [line for line in lines if line.startswith("cell")]
    spans = [re.match(r"cells? (\d+)(?:-(\d+))?  ", line) for line in drawn]
    numbers = [(int(one[1]), int(one[2] or one[1])) for one in spans]

    assert all(len(line) <= WIDTH for line in lines)
    assert len(drawn) <= MOST_LINES
    assert list(range(len(cells))) == [
        cell for first, last in numbers for cell in range(first, last + 1)
    ]
    if len(cells) <= MOST_LINES:
        for line, one in zip(drawn, cells, strict=True):
            assert {SIGNS[role.value] for role in one} == set(line.partition("  ")[2].strip())


RECORD = run(scenario())
