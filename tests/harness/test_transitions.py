"""Real Claude Code processes work on while every cell trains and serves in turn (SPEC 2.3)."""

import shutil
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from staging.findings import VERSIONS, first_difference
from staging.live import Tour, play_live
from staging.live_findings import LiveFindings
from staging.live_script import ERRANDS, MEMBERS
from staging.program import argv, version_of
from tests.waiting import patience

from gyre.scheduler.messages import CellServing, CellTraining, StepTaken, TransitionFailed
from gyre.types.outcomes import Ending, Launched, Terminated
from gyre.types.run_events import TransitionTimed

pytestmark = pytest.mark.harness

PROGRAM = "claude-code-2.1.325"
NONCE = "90b7de14c2a8f635"
GROUPS, BURST = 2, 2
STEPS = 3 * BURST
CELLS = 3
CALLS = 3 + ERRANDS
"""Of each execution: three of its main agent, and one of each sub-agent."""

Play = Callable[[str], LiveFindings]


def tour(name: str, *, steps: int = STEPS, **router: float) -> Tour:
    """Every cell enters training in every burst; two do while calls are in the middle of it."""
    schedule = {"groups_per_batch": GROUPS, "steps_per_burst": BURST, "steps": steps}
    schedule |= {"extra_dispatch": 0.0, "supply_dwell_s": 0.1}
    cells = {"count": CELLS, "capacity": 2, "standalone": [2]}
    tables = {"schedule": schedule, "cells": cells, "router": router}
    claim_s = patience(1.2)
    return Tour(
        name=name,
        program=PROGRAM,
        nonce=NONCE,
        tables=tables,
        claim_s=claim_s,
        held=GROUPS * BURST,
    )


def undisturbed() -> Tour:
    """The work of the first burst at one engine that never trains; no reply waits."""
    schedule = {"groups_per_batch": GROUPS, "steps_per_burst": BURST, "steps": BURST}
    schedule |= {"extra_dispatch": 0.0, "placement": "async"}
    cells = {"count": 1, "capacity": 1, "standalone": [8]}
    tables = {"schedule": schedule, "cells": cells}
    return Tour(name="undisturbed", program=PROGRAM, nonce=NONCE, tables=tables)


TOURS = {
    "moving": tour("moving"),
    "undisturbed": undisturbed(),
    "without hand-off": tour("without hand-off", steps=BURST, kv_s=0.0),
}


@pytest.fixture(scope="module")
def play(programs: Path, tmp_path_factory: pytest.TempPathFactory) -> Play:
    """Plays a run, unless it was played already."""
    folder = tmp_path_factory.mktemp("live")
    stage = folder / "stage"
    assert VERSIONS[PROGRAM] == version_of(PROGRAM)

    @cache
    def of_name(name: str) -> LiveFindings:
        toured = play_live(TOURS[name], stage)
        shutil.move(stage, folder / name)
        return LiveFindings(tour=TOURS[name], toured=toured, folder=folder / name, played_in=stage)

    return of_name


@pytest.mark.parametrize("name", TOURS)
def test_no_call_fails_and_no_program_is_started_twice(play: Play, name: str) -> None:
    found = play(name)
    steps = len(found.facts(StepTaken))
    executions = steps * GROUPS * MEMBERS
    program = str(Path(argv(PROGRAM)[0]).resolve())
    processes: set[tuple[int, int]] = set()

    assert 0 == found.toured.returncode, found.toured.stdout
    assert (["lo"], []) == (found.toured.interfaces, found.toured.routes)
    assert executions == len(found.trees) == len(found.lives)
    for execution, life in found.lives.items():
        (ended,) = [fact for fact in life if isinstance(fact, Terminated)]
        assert 1 == sum(isinstance(fact, Launched) for fact in life)
        assert (Ending.COMPLETED, "exit status 0") == (ended.ending, ended.reason)
        # Its evaluation runs under the supervisor as well.
        ran = [one for one in found.toured.harnesses[execution] if one.exe == program]
        assert 1 == len(ran)
        processes |= {(one.pid, one.started) for one in ran}
        assert not found.said(execution)["is_error"]
    assert executions == len(processes)
    assert {'{dialect="messages",status="200"}': executions * CALLS} == {
        label: number
        for label, number in found.counted("gyre_requests_total").items()
        if "messages" in label
    }
    for metric in ("failures", "unavailable", "breaker_opens", "undelivered", "hand_overs_lost"):
        assert 0 == found.total(f"gyre_{metric}_total"), metric
    for tree in found.trees.values():
        assert CALLS == len(tree.calls)
        assert [] == list(tree.failed)
        assert all(node.committed is not None for node in tree.calls.values())


def test_every_cell_enters_and_leaves_training_several_times(play: Play) -> None:
    """K >= 3, each in a process of its own that lives as long as the run."""
    found = play("moving")
    names = [*(f"cell-{number}" for number in range(CELLS)), f"engine-{CELLS}"]
    entered = Counter(one.cell for one in found.facts(CellTraining))
    left = Counter(one.cell for one in found.facts(CellServing))

    assert names == sorted(found.toured.cells)
    assert len(names) == len({one.pid for [one] in found.toured.cells.values()})
    assert [] == found.facts(TransitionFailed)
    for cell in range(CELLS):
        assert 3 <= entered[cell]
        # The run ends with the publication, before the core would go home.
        assert 2 <= left[cell]


def test_calls_in_the_middle_of_their_replies_move_and_lose_nothing(play: Play) -> None:
    """Their tokens and log-probabilities are those that one engine would have sampled."""
    found = play("moving")
    moved = [one.moved for one in found.facts(TransitionTimed) if one.into_training]

    assert 12 <= found.num_midway <= found.total("gyre_moved_midway_total")
    assert found.total("gyre_moved_midway_total") == sum(one["midway"] for one in moved)
    assert 0 < sum(one["carried_bytes"] for one in moved)
    assert [] == found.wrong_tokens


def test_the_committed_trees_are_those_of_an_undisturbed_run(play: Play) -> None:
    """Of the first burst, in which every cell enters training; the others have its script."""
    moving, quiet = play("moving"), play("undisturbed")

    assert (0, 0) == (quiet.num_midway, quiet.num_moved_executions)
    assert sorted(quiet.shapes) == sorted(moving.shapes)[: BURST * GROUPS * MEMBERS]
    for execution, shape in quiet.shapes.items():
        assert first_difference(shape, moving.shapes[execution]) is None, execution


def test_without_hand_off_only_what_is_prefilled_again_changes(play: Play) -> None:
    moving, bare, quiet = play("moving"), play("without hand-off"), play("undisturbed")

    assert 0 < bare.num_midway
    assert 0 == bare.total("gyre_hand_overs_total") == bare.total("gyre_carried_bytes_total")
    assert [] == bare.wrong_tokens
    for execution, shape in bare.shapes.items():
        assert first_difference(quiet.shapes[execution], shape) is None, execution
    # Per call that moved: a few tokens of an unfinished block, or the whole prompt.
    assert 32 > moving.prefilled_again / moving.num_midway
    assert 1000 < bare.prefilled_again / bare.num_midway


def test_two_satellites_join_a_batch_that_others_work_on(
    play: Play, capsys: pytest.CaptureFixture[str]
) -> None:
    found = play("moving")
    with capsys.disabled():
        for name in TOURS:
            print(f"\n{play(name).table()}")

    assert 2 <= len({one.cell for one in found.joins if one.num_claims})
    assert STEPS * GROUPS * MEMBERS == found.claims.total()
