"""Every program, over several turns with tools: one path, no forks, nothing but what was said."""

from collections import Counter

import pytest
from staging.findings import (
    Stage,
    all_lines,
    assert_computed,
    assert_exact,
    assert_real,
    num_tokens,
)
from staging.scene import Scene
from staging.scripts import MINI, READER, TASK, WORKERS

pytestmark = pytest.mark.harness

NONCE = "3d7e91a6b50c28f4"


def scene(program: str, script: str) -> Scene:
    return Scene(program=program, script=script, task=f"{TASK}: go", nonce=NONCE)


@pytest.mark.parametrize(
    ("program", "voice"),
    [
        ("claude-code-2.1.220", "claude"),
        ("claude-code-2.1.325", "claude"),
        ("codex", "codex"),
        ("qwen-code", "qwen"),
    ],
)
def test_a_tool_using_run_is_one_path(stage: Stage, program: str, voice: str) -> None:
    """T12: arguments come back in another order and form, and no call forks."""
    found = stage(scene(program, f"{voice}_worker"))
    lines = WORKERS[voice].lines
    assert 0 == found.outcome.returncode
    assert_real(found)
    assert_exact(found)
    assert_computed(found, "main", num_leaves=1)
    assert found.scene.nonce[::-1] in found.path_texts("main")[0]
    assert {"main": len(lines)} == found.calls
    assert {"main": 1} == found.leaves
    assert Counter() == found.forks
    assert len(lines) == found.num_requests
    assert num_tokens(*lines) == found.num_targets
    assert "All done." in found.outcome.stdout


def test_opencode_asks_for_a_title_beside_its_work(stage: Stage) -> None:
    """M17: the title is recorded and is neither a leaf nor a target."""
    found = stage(scene("opencode", "opencode_worker"))
    lines = WORKERS["opencode"].lines
    assert 0 == found.outcome.returncode
    assert_real(found)
    assert_exact(found)
    assert_computed(found, "main", num_leaves=1)
    assert found.scene.nonce[::-1] in found.path_texts("main")[0]
    assert {"main": len(lines), "aux": 1} == found.calls
    assert {"main": 1} == found.leaves
    assert {"new-root": 1} == found.forks
    assert len(lines) + 1 == found.num_requests
    assert num_tokens(*lines) == found.num_targets


def test_mini_swe_agent_drops_a_reply_without_a_tool_call(stage: Stage) -> None:
    """The reply it drops stays a leaf of its own; the rest goes on from the turn before."""
    found = stage(scene("mini-swe-agent", "mini_worker"))
    lines = all_lines(*MINI)
    assert 0 == found.outcome.returncode
    assert_real(found)
    assert_exact(found)
    assert_computed(found, "main", num_leaves=2)
    assert {"main": len(lines)} == found.calls
    assert {"main": 2} == found.leaves
    assert {"reply-dropped": 1} == found.forks
    assert len(lines) == found.num_requests
    assert num_tokens(*lines) == found.num_targets
    kept = found.folder / "home" / ".config" / "mini-swe-agent" / "last_mini_run.traj.json"
    trajectory = kept.read_text()
    assert f'"mini_version": "{found.version}"' in trajectory


def test_counts_and_searches_leave_the_path_alone(stage: Stage) -> None:
    """M17, M25: a token count makes no node; a web search is recorded and never trained."""
    found = stage(scene("claude-code-2.1.325", "claude_reader"))
    counts = [seen for seen in found.outcome.seen if seen.path.endswith("/count_tokens")]
    assert 0 == found.outcome.returncode
    assert_real(found)
    assert_exact(found)
    assert [200] == [seen.status for seen in counts]
    assert {"main": len(READER.lines), "aux": 1} == found.calls
    assert {"main": 1} == found.leaves
    assert {"new-root": 1} == found.forks
    assert len(READER.lines) + 1 == found.num_requests
    assert num_tokens(*READER.lines) == found.num_targets
