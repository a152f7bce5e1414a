"""Real programs as a run file names them: supervised, recorded, and judged by what they left."""

from pathlib import Path
from typing import Literal

import pytest
from staging.findings import num_tokens
from staging.scripts import ANSWER, DOERS, TASK
from staging.supervised import Errand, play_supervised

from gyre.rollout import facts
from gyre.storage import call_log
from gyre.trajectory.tree import grow
from gyre.types.outcomes import Ending, Outcome

pytestmark = pytest.mark.harness


@pytest.mark.parametrize(
    ("kind", "sandbox"),
    [
        ("claude_code", "local"),
        ("mini_swe_agent", "local"),
        ("codex", "process"),
    ],
)
def test_a_program_does_its_task_under_a_supervisor(
    programs: Path, tmp_path: Path, kind: str, sandbox: Literal["process", "local"]
) -> None:
    """SPEC 6.1, 6.2; its instruction may begin as an option does."""
    nonce = "b1690f4ce7d2358a"
    folder = tmp_path / "stage"
    errand = Errand(kind=kind, sandbox=sandbox, instruction=f"- {TASK}: go", nonce=nonce)
    play_supervised(errand, folder)
    record = facts.read_outcome(folder / "execution")
    output = (folder / "execution" / "output.txt").read_text(errors="replace")
    (log,) = call_log.logs(folder / "run")
    tree = grow(call_log.read(log).records)

    assert record.terminated is not None
    assert record.closed is not None
    assert (Ending.COMPLETED, "exit status 0") == (
        record.terminated.ending,
        record.terminated.reason,
    ), output
    assert (Outcome.VALID, 1.0) == (record.closed.outcome, record.closed.score)
    assert nonce[::-1] == (folder / "execution" / "frozen" / ANSWER).read_text().strip()
    assert len(DOERS[kind].lines) == len(tree.calls)
    assert {"main"} == {node.role for node in tree.calls.values()}
    assert all(node.committed is not None for node in tree.calls.values())
    assert num_tokens(*DOERS[kind].lines) == sum(one.num_output for one in tree.calls.values())
