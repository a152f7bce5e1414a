"""Every bug that is planted in a real class is found, by an invariant that it breaks."""

import pytest
from tests.chaos_sim.planted import PLANTED

pytestmark = pytest.mark.slow

MOST_SEEDS = 60
"""Seeds within which a bug is found."""


@pytest.mark.parametrize("name", sorted(PLANTED))
def test_a_planted_bug_is_found(name):
    bug = PLANTED[name]
    found = (bug.simulate(seed).violations for seed in range(MOST_SEEDS))
    first = next((one[0] for one in found if one), "nothing")

    assert first.startswith(bug.breaks), first


def test_every_invariant_finds_a_bug_that_no_other_would():
    alone = {one.breaks[0] for one in PLANTED.values() if len(one.breaks) == 1}

    assert {*(f"I{number}" for number in range(1, 11)), "ledgers", "SPEC 10"} == alone
