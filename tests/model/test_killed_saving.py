"""A core that is killed while it writes a checkpoint leaves the one before it as it was."""

import subprocess
import sys

import pytest
from tests.waiting import PATIENCE_S

from gyre.model.checkpoint_store import listed, newest, sweep, verified

pytestmark = pytest.mark.slow


def test_killed_at_any_operation_the_checkpoint_before_is_used_or_the_new_one_is_whole(tmp_path):
    """FAULTS 26."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.cell.support.killed_saver", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=5 * PATIENCE_S,
        check=True,
    )
    lines = [line.split() for line in done.stdout.splitlines()]
    found = []
    for number, _ in lines:
        refused = []
        one = newest(
            tmp_path / number,
            with_optimizer=True,
            refused=lambda path, why, refused=refused: refused.append(why),
        )
        assert [] == refused
        verified(tmp_path / number / "v000001", with_optimizer=True)
        left = sweep(tmp_path / number)
        # What is listed without a look at its hashes is whole as well.
        for each in listed(tmp_path / number):
            verified(each.folder, with_optimizer=each.has_optimizer)
        found.append((one.version, len(listed(tmp_path / number)), bool(left)))

    assert ["killed"] * (len(lines) - 1) + ["written"] == [how for _, how in lines]
    assert found == sorted(found, key=lambda one: one[:2])
    # Nothing yet; half of the weights; weights alone; half of the state; all of it.
    assert {(1, 1, False), (1, 1, True), (1, 2, False), (1, 2, True), (2, 2, False)} <= {*found}
    assert (2, 2, False) == found[-1]
