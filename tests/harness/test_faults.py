"""Refusals, cut connections and lost replies: programs try again, and the tree shows one run."""

import pytest
from staging.findings import Stage, assert_computed, assert_exact, assert_real, num_tokens
from staging.relay import RelayFault
from staging.scene import Scene
from staging.scripts import MINI, TASK, WORKERS

pytestmark = pytest.mark.harness

NONCE = "e47a02bb61f9835c"


def test_claude_code_survives_refusals_and_cuts(stage: Stage) -> None:
    """T08, M16: it sends the same body again, and only what was answered is in the tree."""
    found = stage(
        Scene(
            program="claude-code-2.1.325",
            script="claude_worker",
            task=f"{TASK}: go",
            nonce=NONCE,
            faults=(
                RelayFault(call=1, kind="status"),
                RelayFault(call=3, kind="status"),
                RelayFault(call=4, kind="status"),
                RelayFault(call=6, kind="refuse"),
                RelayFault(call=8, kind="cut"),
            ),
        )
    )
    lines = WORKERS["claude"].lines
    assert 0 == found.outcome.returncode
    assert_real(found)
    assert_exact(found, num_cut=1)
    assert_computed(found, "main", num_leaves=1)
    assert [529, 200, 529, 529, 200, None, 200, None, 200] == found.statuses
    assert len(lines) == len({seen.digest for seen in found.outcome.seen if seen.call})
    assert {"main": len(lines)} == found.calls
    assert {"main": 1} == found.leaves
    assert {} == found.forks
    assert num_tokens(*lines) == found.num_targets


def test_a_reply_that_was_sent_and_lost_is_a_twin(stage: Stage) -> None:
    """M08: all of it left the proxy, so it stays a leaf; the run goes on from its twin."""
    found = stage(
        Scene(
            program="claude-code-2.1.220",
            script="claude_worker",
            task=f"{TASK}: go",
            nonce=NONCE,
            faults=(RelayFault(call=3, kind="lose"),),
        )
    )
    lines = WORKERS["claude"].lines
    assert 0 == found.outcome.returncode
    assert_real(found)
    assert_exact(found)
    assert [200, 200, None, 200, 200] == found.statuses
    assert {"main": len(lines) + 1} == found.calls
    assert {"main": 2} == found.leaves
    assert {"retry": 1} == found.forks
    assert num_tokens(*lines, lines[2]) == found.num_targets


@pytest.mark.parametrize(
    ("program", "voice"), [("codex", "codex"), ("opencode", "opencode"), ("qwen-code", "qwen")]
)
def test_other_programs_survive_refusals_and_cuts(stage: Stage, program: str, voice: str) -> None:
    """T08, M16: one refusal, one closed connection, one cut in the middle of a reply."""
    # opencode asks for a title first, in which nothing is to go wrong.
    titles = 1 if program == "opencode" else 0
    found = stage(
        Scene(
            program=program,
            script=f"{voice}_worker",
            task=f"{TASK}: go",
            nonce=NONCE,
            faults=(
                RelayFault(call=titles + 1, kind="status", status=503),
                RelayFault(call=titles + 3, kind="refuse"),
                RelayFault(call=titles + 5, kind="cut"),
            ),
        )
    )
    lines = WORKERS[voice].lines
    assert 0 == found.outcome.returncode
    assert_real(found)
    assert_exact(found, num_cut=1)
    assert_computed(found, "main", num_leaves=1)
    assert [*[200] * titles, 503, 200, None, 200, None, 200] == found.statuses
    assert len(lines) == found.calls["main"]
    assert {"main": 1} == found.leaves
    assert num_tokens(*lines) == found.num_targets


def test_mini_swe_agent_survives_refusals(stage: Stage) -> None:
    """M16: it asks for whole replies, so a cut in the middle is a connection that closes."""
    found = stage(
        Scene(
            program="mini-swe-agent",
            script="mini_worker",
            task=f"{TASK}: go",
            nonce=NONCE,
            faults=(
                RelayFault(call=1, kind="status", status=503),
                RelayFault(call=3, kind="refuse"),
            ),
        )
    )
    assert 0 == found.outcome.returncode
    assert_real(found)
    assert_exact(found)
    assert [503, 200, None, 200, 200, 200] == found.statuses
    assert {"main": sum(len(one.lines) for one in MINI)} == found.calls
    assert {"main": 2} == found.leaves
    assert {"reply-dropped": 1} == found.forks
