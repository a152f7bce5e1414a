"""Whole runs of the real controller under made-up time, with the faults that a seed picks."""

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from tests.chaos_sim.faults import KINDS
from tests.chaos_sim.simulation import simulate

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
SEEDS = 80
"""Every kind of fault hits several of them; `make chaos` runs very many more."""
SHARDED = 24


@pytest.fixture(scope="module")
def results():
    return [simulate(seed) for seed in range(SEEDS)]


def test_every_invariant_holds_where_the_proxy_is_several_processes():
    """Two or three, each of which the same faults may hit."""
    results = [simulate(seed, shards=2 + seed % 2) for seed in range(SHARDED)]
    hit = sum(one.faults.get("kill the proxy", 0) for one in results)

    assert {} == {one.seed: one.violations for one in results if one.violations}
    assert {"finished": SHARDED} == Counter(one.reason for one in results)
    assert SHARDED // 10 <= hit


def test_every_invariant_holds_in_every_seed(results):
    """`scripts/chaos --seed N` prints what happened in seed N."""
    assert {} == {one.seed: one.violations for one in results if one.violations}


def test_every_run_comes_to_its_end(results):
    assert {"finished": SEEDS} == Counter(one.reason for one in results)


def test_every_kind_of_fault_hits_something(results):
    hit = Counter()
    for one in results:
        hit.update(one.faults)

    assert set() == set(KINDS) - set(hit)


@pytest.mark.parametrize("hashing", ["1", "2"])
def test_a_seed_is_the_same_run_again_in_another_process(results, hashing):
    """Whatever the order is in which that process finds what it keeps in sets."""
    hardest = max(results, key=lambda one: (sum(one.faults.values()), one.seed))
    again = subprocess.run(
        [sys.executable, "-m", "tests.chaos_sim", "--seed", str(hardest.seed)],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": hashing},
        capture_output=True,
        text=True,
    )

    assert list(hardest.trace) == again.stdout.splitlines()
