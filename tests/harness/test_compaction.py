"""Compaction of the main agent and of a sub-agent: the summary is a leaf, the rest starts anew."""

from typing import Any

import pytest
from staging.findings import Findings, Stage, assert_computed, assert_exact, assert_real
from staging.scene import Scene
from staging.scripts import RESUMED, SUMMARY, TASK

pytestmark = pytest.mark.harness

NONCE = "90d3a7e1c4b85f26"
CLAUDE_WINDOW = {
    # A third variable would not be listened to; of these two the second needs the first.
    "CLAUDE_CODE_AUTO_COMPACT_WINDOW": "100000",
    "CLAUDE_AUTOCOMPACT_PCT_OVERRIDE": "50",
}


def compacted(
    stage: Stage, program: str, script: str, *, status: int = 0, **given: Any
) -> Findings:
    """What a program that sums up leaves, after it ended with a status."""
    task = f"{TASK}: go"
    found = stage(Scene(program=program, script=script, task=task, nonce=NONCE, **given))
    assert status == found.outcome.returncode
    assert_real(found)
    assert_exact(found)
    return found


def test_claude_code_sums_up_its_main_agent(stage: Stage) -> None:
    """M06: the summary forks off the old path, and its text is input where work goes on."""
    found = compacted(stage, "claude-code-2.1.220", "claude_compacting", environment=CLAUDE_WINDOW)
    assert_computed(found, "main", num_leaves=2)
    assert {"main": 5, "main-summary": 1} == found.calls
    assert {"main": 2, "main-summary": 1} == found.leaves
    # The newest turn is left out of what is summed up, and copied beside the summary.
    assert {"reply-dropped": 1, "new-conversation": 1} == found.forks
    assert 6 == found.num_requests
    before, after = found.path_texts("main")
    assert (False, True) == (SUMMARY in before, SUMMARY in after)
    assert (True, True) == ("Once more." in before, "Once more." in after)


def test_claude_code_sums_up_a_sub_agent(stage: Stage) -> None:
    """M06: it goes on under the same agent id, and the main agent's path stays whole."""
    found = compacted(
        stage, "claude-code-2.1.325", "claude_compacting_errand", environment=CLAUDE_WINDOW
    )
    assert_computed(found, "sub-agent", num_leaves=2)
    assert {"main": 2, "sub-agent": 5, "sub-agent-summary": 1} == found.calls
    assert {"main": 1, "sub-agent": 2, "sub-agent-summary": 1} == found.leaves
    assert {"new-root": 1, "reply-dropped": 1, "new-conversation": 1} == found.forks
    assert 1 == len(found.agents)
    assert 8 == found.num_requests


def test_codex_sums_up_without_its_tools(stage: Stage) -> None:
    """M01, M06: a prompt without tools shares no tokens with the path it sums up."""
    found = compacted(stage, "codex", "codex_compacting", options={"compact_at": 20_000})
    assert_computed(found, "main", num_leaves=2)
    assert {"main": 5, "main-summary": 1} == found.calls
    assert {"main": 2, "main-summary": 1} == found.leaves
    # The user's own words are kept, so the new start stands beside the very first reply.
    assert {"new-root": 1, "reply-dropped": 1} == found.forks
    assert 6 == found.num_requests
    assert "Another language model" in found.path_texts("main")[1]


def test_opencode_sums_up_under_another_system_text(stage: Stage) -> None:
    """M06, M11: the summary comes back as an assistant's turn, and is input there."""
    found = compacted(stage, "opencode", "opencode_compacting", options={"context": 24_000})
    assert_computed(found, "main", num_leaves=2)
    assert {"main": 5, "main-summary": 1, "aux": 1} == found.calls
    assert {"main": 2, "main-summary": 1} == found.leaves
    assert {"new-root": 2, "new-conversation": 1} == found.forks
    assert 7 == found.num_requests


def test_qwen_code_rewrites_its_first_message_after_a_summary(stage: Stage) -> None:
    """M04, M06: the call after the summary is a leaf, because the next one begins otherwise."""
    found = compacted(stage, "qwen-code", "qwen_compacting", options={"compact_fraction": 0.3})
    # The leaf between holds only the last turn before the summary, which has it reversed.
    assert_computed(found, "main", num_leaves=2)
    assert NONCE[::-1] in found.path_texts("main")[1]
    assert {"main": 5, "main-summary": 1} == found.calls
    assert {"main": 3, "main-summary": 1} == found.leaves
    assert {"new-conversation": 2} == found.forks
    assert 6 == found.num_requests


def test_codex_sums_up_a_thread(stage: Stage) -> None:
    """M06: the metadata of its request names the thread that is summed up."""
    found = compacted(stage, "codex", "codex_compacting_errand", options={"compact_at": 20_000})
    assert_computed(found, "sub-agent", num_leaves=2)
    assert {"main": 3, "sub-agent": 5, "sub-agent-summary": 1} == found.calls
    assert {"main": 1, "sub-agent": 2, "sub-agent-summary": 1} == found.leaves
    assert {"new-conversation": 1, "new-root": 1, "reply-dropped": 1} == found.forks
    assert 1 == len(found.agents)
    assert 9 == found.num_requests


def test_qwen_code_sums_up_a_sub_agent(stage: Stage) -> None:
    """M06: the sub-agent's system text is all that tells whose summary it is."""
    found = compacted(
        stage, "qwen-code", "qwen_compacting_errand", options={"compact_fraction": 0.3}
    )
    assert_computed(found, "sub-agent", num_leaves=2)
    assert {"main": 2, "sub-agent": 5, "sub-agent-summary": 1} == found.calls
    assert {"main": 1, "sub-agent": 2, "sub-agent-summary": 1} == found.leaves
    assert {"new-root": 1, "new-conversation": 1} == found.forks
    assert 8 == found.num_requests


def test_opencode_sums_up_a_sub_agent(stage: Stage) -> None:
    """M06: its request names the session alone, which earlier calls showed to be a sub-agent's."""
    found = compacted(stage, "opencode", "opencode_compacting_errand", options={"context": 24_000})
    assert {"main": 2, "sub-agent": 5, "sub-agent-summary": 1, "aux": 1} == found.calls
    assert {"main": 1, "sub-agent": 2, "sub-agent-summary": 1} == found.leaves
    assert {"new-root": 2, "new-conversation": 2} == found.forks
    assert 1 == len(found.agents)


@pytest.mark.parametrize(
    ("program", "window"), [("claude-code-2.1.220", "45000"), ("claude-code-2.1.325", "42000")]
)
def test_claude_code_sums_up_when_a_prompt_is_refused(
    stage: Stage, program: str, window: str
) -> None:
    """M16: the refusal records nothing, and its words make the program sum up and go on."""
    found = compacted(stage, program, "claude_overflowing", proxy=("--context", window))
    assert_computed(found, "main", num_leaves=2)
    assert [200, 200, 200, 200, 400, 200, 200, 200] == found.statuses
    assert {"main": 6, "main-summary": 1} == found.calls
    assert {"main": 2, "main-summary": 1} == found.leaves
    assert {"reply-dropped": 1, "new-conversation": 1} == found.forks
    assert RESUMED in found.path_texts("main")[1]


def test_an_execution_that_cannot_be_summed_up_ends_and_is_kept(stage: Stage) -> None:
    """M24: the newest turn alone does not fit, so the program gives up; what it did is a tree."""
    found = compacted(
        stage, "claude-code-2.1.325", "claude_compacting", proxy=("--context", "45000"), status=1
    )
    assert_computed(found, "main", num_leaves=1)
    assert [200, 200, 400, 200, 400] == found.statuses
    assert {"main": 2, "main-summary": 1} == found.calls
    assert {"main": 1, "main-summary": 1} == found.leaves
    assert {"reply-dropped": 1} == found.forks
