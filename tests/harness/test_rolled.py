"""A group of executions of a real program with one command: scored, recorded, and seen as trees."""

import json
from pathlib import Path

import pytest
from staging.rolled import roll_out
from staging.scripts import DOERS

from gyre.storage import call_log
from gyre.trajectory.tree import grow

pytestmark = pytest.mark.harness
MEMBERS = 2


def test_a_group_of_claude_code_is_executed_without_a_network(
    programs: Path, tmp_path: Path
) -> None:
    """SPEC 6.1, 6.2: every execution in a sandbox of its own, which reaches the proxy alone."""
    folder = tmp_path / "stage"
    status, said = roll_out("claude_code", folder, members=MEMBERS, nonce="b1690f4ce7d2358a")
    lines = (folder / "run" / "results.jsonl").read_text().splitlines()
    results = [json.loads(line) for line in lines]
    trees = [grow(call_log.read(log).records) for log in call_log.logs(folder / "run")]

    assert 0 == status, said
    assert f"[{MEMBERS}/{MEMBERS}]" in said
    assert [("completed", "valid", 1.0)] * MEMBERS == [
        (one["ending"], one["outcome"], one["score"]) for one in results
    ]
    assert [len(DOERS["claude_code"].lines)] * MEMBERS == [len(tree.calls) for tree in trees]
    assert {"main"} == {node.role for tree in trees for node in tree.calls.values()}
