"""The results that are kept: very many seeds of one state of the sources, and what broke."""

from collections import Counter

import pytest
from tests.chaos_sim.__main__ import CHUNK, RESULTS, known
from tests.chaos_sim.faults import KINDS

LINES = known(RESULTS)
OPEN = {
    "4880": "SPEC 10: a folder in shared memory is left behind",
    "7694": "I10: an assertion fails in a controller that was stopped while its core died",
}
"""Seeds that break something which nobody has mended yet; the page names them too."""


def test_no_seed_is_left_out():
    assert LINES
    assert [CHUNK * number for number in range(len(LINES))] == [one["first"] for one in LINES]
    assert 1 == len({one["sources"] for one in LINES})


def test_no_invariant_was_broken_but_in_seeds_that_are_named():
    assert OPEN.keys() == {seed for one in LINES for seed in one["violations"]}


def test_every_run_but_two_came_to_its_end():
    ends = Counter()
    for one in LINES:
        ends.update(one["ends"])

    assert CHUNK * len(LINES) == ends.total()
    assert {"core-failed": 1, "violation": 1} == {
        one: ends[one] for one in ends.keys() - {"finished"}
    }


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_fault_hit_something_again_and_again(kind):
    assert sum(one["faults"].get(kind, 0) for one in LINES) >= len(LINES)
