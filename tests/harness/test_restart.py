"""kill -9 of the proxy while Claude Code runs: it starts again, and the run ends as if nothing."""

from dataclasses import replace

import pytest
from staging.findings import Stage, assert_computed, assert_exact, assert_real, difference
from staging.scene import Scene
from staging.scripts import TASK

pytestmark = pytest.mark.harness

PROGRAM = "claude-code-2.1.325"
NONCE = "6b1f0c55d20e9a37"


@pytest.mark.parametrize("kill_in_calls", [(1,), (2, 3), (7,)])
def test_a_killed_proxy_comes_back_and_the_tree_is_the_same(
    stage: Stage, kill_in_calls: tuple[int, ...]
) -> None:
    """The first call, two sub-agents at once, and a later one are in flight when it dies."""
    quiet = Scene(program=PROGRAM, script="claude_family", task=f"{TASK}: go", nonce=NONCE)
    undisturbed = stage(quiet)
    killed = stage(replace(quiet, kill_in_calls=kill_in_calls))
    assert 0 == killed.outcome.returncode
    assert (1, 2) == (len(undisturbed.outcome.proxy_pids), len(killed.outcome.proxy_pids))
    assert_real(killed)
    assert 14 < killed.num_requests
    assert_exact(killed, num_cut=len(kill_in_calls))
    assert_computed(killed, "sub-agent", num_leaves=4)
    assert undisturbed.leaves == killed.leaves
    assert undisturbed.forks == killed.forks
    assert undisturbed.num_targets == killed.num_targets
    assert difference(undisturbed, killed) is None
