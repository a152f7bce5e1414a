"""A supervisor killed around all that it does to the disk: one launch, one end, one score."""

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from tests.controller.support.supervised import evaluation, order
from tests.export.test_steps import ONE, TWO, changed, stepped
from tests.waiting import PATIENCE_S

from gyre.rollout import facts
from gyre.rollout import facts as outcome
from gyre.types.outcomes import (
    Assessed,
    Closed,
    Launched,
    Outcome,
    Prepared,
    StepAssessed,
    StepEnded,
    StepStarted,
    Terminated,
)

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
ONCE = (Prepared, Launched, Terminated)
FLAKY = evaluation(
    "test -s work || exit 0; test -e ../once || { touch ../once; exit 7; }; "
    'echo "0.$(wc -l < work)" > $GYRE_RESULTS/reward.txt',
    attempts=4,
)
"""Breaks once, and says nothing of work that was never begun."""
STARTED = 'echo x >> ../starts; eval "$0"'
"""An agent that counts how often it is started."""


def lives(folder, wanted):
    """Folders of executions whose supervisors died a moment later each time, until none did."""
    command = [sys.executable, "-m", "tests.rollout.support.killed_supervisor", str(folder)]
    done = subprocess.run(
        command,
        cwd=ROOT,
        input=msgspec.json.encode(wanted),
        capture_output=True,
        check=False,
        timeout=5 * PATIENCE_S,
    )
    assert (0, b"") == (done.returncode, done.stderr)
    return sorted(folder.iterdir(), key=lambda path: int(path.name))


def told(folder):
    return [entry.fact for entry in facts.read(folder)]


def count(known, kind):
    return sum(isinstance(fact, kind) for fact in known)


def num_starts(folder):
    starts = folder / "starts"
    return len(starts.read_text().splitlines()) if starts.exists() else 0


def test_wherever_a_supervisor_dies_another_brings_it_to_one_outcome(tmp_path):
    """SPEC 1.2, 6.2, 10; FAULTS 11, 16, 20: the harness is never started twice."""
    wanted = order(["sh", "-c", STARTED, "echo one > work"], judge=FLAKY)
    folders = lives(tmp_path, wanted)
    found = []
    for folder in folders:
        known, record = told(folder), outcome.read_outcome(folder)

        assert [1, 1, 1, 1] == [count(known, kind) for kind in (*ONCE, Closed)]
        assert known[-1] == record.closed
        assert {record.terminated.state.reference} == {one.reference for one in record.assessments}
        found.append((num_starts(folder), record.closed.outcome, record.closed.score))

    # Said to be launched and then dead: it must not be started again, and nobody can judge it.
    assert {(1, Outcome.VALID, 0.1), (0, Outcome.EXCLUDED, None)} == set(found)
    assert 2 == found.count((0, Outcome.EXCLUDED, None))
    assert len(folders) > 2 * len(told(folders[-1]))


def test_wherever_a_supervisor_dies_no_step_is_started_or_scored_twice(tmp_path):
    wanted = stepped(ONE, changed(TWO, evaluation=FLAKY), harness=STARTED)
    folders = lives(tmp_path, wanted)
    for folder in folders:
        known, record = told(folder), outcome.read_outcome(folder)
        valid = [
            type(fact)
            for fact in known
            if isinstance(fact, StepAssessed | Assessed) and fact.assessment.score is not None
        ]

        assert [1, 1, 1, 1] == [count(known, kind) for kind in (*ONCE, Closed)]
        assert (1, 1) == (count(known, StepEnded), count(known, StepStarted))
        assert [StepAssessed, Assessed] == valid
        assert num_starts(folder) in (1, 2)
        assert known[-1] == record.closed
        assert Outcome.VALID is record.closed.outcome

    assert pytest.approx(0.15) == outcome.read_outcome(folders[-1]).closed.score
    assert len(folders) > 2 * len(told(folders[-1]))
