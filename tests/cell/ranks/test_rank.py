"""A rank's process as its driver sees it: lines in, lines out, and an end that is noticed."""

import subprocess
import sys

import pytest
from tests.cell.support.live_cells import Batch, Started
from tests.controller.support.forked_cells import fork_clients
from tests.waiting import PATIENCE_S

from gyre.storage.files import write_plan

pytestmark = pytest.mark.slow
cells_are_forked = fork_clients("gyre.cell.main")

LIMIT_S = PATIENCE_S


def test_a_thread_that_fails_takes_the_process_with_it(tmp_path):
    """A driver that waits for an answer for as long as it takes must not wait for nobody."""
    batch = Batch(tmp_path / "model")
    plan = Started(tmp_path, batch.model).plan(0)
    path = write_plan(tmp_path / "plan.json", plan)
    with subprocess.Popen(
        [sys.executable, "-m", "gyre.cell.ranks.main", str(path), "0", str(tmp_path / "store")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as rank:
        try:
            ready = rank.stdout.readline()
            rank.stdin.write(b"no order\n")
            rank.stdin.flush()
            code = rank.wait(LIMIT_S)
        finally:
            rank.kill()
        said = rank.stderr.read()

    assert b'{"number":0' == ready[:11]
    assert 1 == code
    assert b"DecodeError" in said
