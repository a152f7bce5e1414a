"""The results that are kept: very many seeds of one state of the sources, and what broke."""

from collections import Counter

import pytest
from tests.chaos_sim.__main__ import CHUNK, RESULTS, known
from tests.chaos_sim.faults import KINDS

LINES = known(RESULTS)


def test_no_seed_is_left_out():
    assert LINES
    assert [CHUNK * number for number in range(len(LINES))] == [one["first"] for one in LINES]
    assert 1 == len({one["sources"] for one in LINES})


def test_no_invariant_was_broken():
    assert {} == {seed: said for one in LINES for seed, said in one["violations"].items()}


def test_every_run_came_to_its_end():
    ends = Counter()
    for one in LINES:
        ends.update(one["ends"])

    assert {"finished": CHUNK * len(LINES)} == ends


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_fault_hit_something_again_and_again(kind):
    assert sum(one["faults"].get(kind, 0) for one in LINES) >= len(LINES)
