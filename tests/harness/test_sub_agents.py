"""Sub-agents, at once and one inside another: each has its own path, whoever speaks in between."""

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
from staging.scripts import (
    ALPHA,
    BRAVO,
    CHARLIE,
    FORK,
    TASK,
    claude_agent,
    claude_shell,
    family,
    opencode_agent,
    opencode_shell,
    qwen_agent,
    qwen_shell,
)

pytestmark = pytest.mark.harness

NONCE = "6b1f0c55d20e9a37"


def scene(program: str, script: str) -> Scene:
    return Scene(program=program, script=script, task=f"{TASK}: go", nonce=NONCE)


@pytest.mark.parametrize("program", ["claude-code-2.1.220", "claude-code-2.1.325"])
def test_claude_code_sends_sub_agents(stage: Stage, program: str) -> None:
    """M07, T17: three at once where two may run, so one is refused and sent again; one nests."""
    found = stage(scene(program, "claude_family"))
    spoken = all_lines(*family(claude_shell, claude_agent, at_once=(ALPHA, BRAVO, CHARLIE)))
    assert 0 == found.outcome.returncode
    assert_real(found)
    assert_exact(found)
    assert_computed(found, "sub-agent", num_leaves=4)
    assert {"main": 4, "sub-agent": 10} == found.calls
    assert {"main": 1, "sub-agent": 5} == found.leaves
    assert {"new-root": 1, "new-conversation": 4} == found.forks
    assert 5 == len(found.agents)
    assert 14 == found.num_requests
    assert num_tokens(*spoken) == found.num_targets
    assert "Concurrent subagent limit reached" in found.path_texts("main")[0]


def test_claude_code_forks_itself(stage: Stage) -> None:
    """The fork goes on from the main agent's own turn, whose targets still count once."""
    found = stage(scene("claude-code-2.1.325", "claude_forking"))
    assert 0 == found.outcome.returncode
    assert_real(found)
    assert_exact(found)
    assert_computed(found, "sub-agent", num_leaves=1)
    assert {"main": 3, "sub-agent": 2} == found.calls
    assert {"main": 1, "sub-agent": 1} == found.leaves
    assert {"branch": 1} == found.forks
    assert 5 == found.num_requests
    assert num_tokens(*all_lines(*FORK)) == found.num_targets
    assert NONCE[::-1] in found.path_texts("sub-agent")[0]


def test_codex_spawns_threads(stage: Stage) -> None:
    """M07: three where two may live, waited for and closed by the ids that Codex gave them."""
    found = stage(scene("codex", "codex_family"))
    assert 0 == found.outcome.returncode
    assert_real(found)
    assert_exact(found)
    assert_computed(found, "sub-agent", num_leaves=4)
    assert {"main": 10, "sub-agent": 11} == found.calls
    assert {"main": 1, "sub-agent": 5} == found.leaves
    # Threads begin with the main thread's own messages; the innermost has fewer tools.
    assert {"new-root": 1, "new-conversation": 4} == found.forks
    assert 5 == len(found.agents)
    assert 21 == found.num_requests
    assert "agent thread limit reached" in found.path_texts("main")[0]


def test_opencode_runs_tasks(stage: Stage) -> None:
    """M07: it has no limit of its own, so two run at once and one nests."""
    found = stage(scene("opencode", "opencode_family"))
    spoken = all_lines(*family(opencode_shell, opencode_agent, at_once=(ALPHA, BRAVO)))
    assert 0 == found.outcome.returncode
    assert_real(found)
    assert_exact(found)
    assert_computed(found, "sub-agent", num_leaves=4)
    assert {"main": 4, "sub-agent": 10, "aux": 1} == found.calls
    assert {"main": 1, "sub-agent": 5} == found.leaves
    # Allowed to send others, its sub-agents have the main agent's own system text and tools.
    assert {"new-root": 1, "new-conversation": 5} == found.forks
    assert 5 == len(found.agents)
    assert 15 == found.num_requests
    assert num_tokens(*spoken) == found.num_targets


def test_qwen_code_runs_agents(stage: Stage) -> None:
    """M07: nothing on the wire names them, and still each has its own path."""
    found = stage(scene("qwen-code", "qwen_family"))
    spoken = all_lines(*family(qwen_shell, qwen_agent, at_once=(ALPHA, BRAVO)))
    assert 0 == found.outcome.returncode
    assert_real(found)
    assert_exact(found)
    assert_computed(found, "sub-agent", num_leaves=4)
    assert {"main": 4, "sub-agent": 10} == found.calls
    assert {"main": 1, "sub-agent": 5} == found.leaves
    assert {"new-root": 1, "new-conversation": 4} == found.forks
    assert 14 == found.num_requests
    assert num_tokens(*spoken) == found.num_targets
