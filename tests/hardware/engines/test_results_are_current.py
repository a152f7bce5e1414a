"""The last runs against real engines were of the adapters as they are."""

from pathlib import Path

import pytest
from real.result import ENGINES, digest_of
from tests.hand_run_results import holding, newest

TABLE = Path(__file__).with_name("still_hold.md")
AGAIN = "run `make test-engines` and commit the results it writes"


@pytest.mark.parametrize("name", sorted(ENGINES))
def test_the_adapters_are_those_that_real_engines_were_asked_through(name):
    found = newest(name)
    measured = found["settings"]["adapters"]

    assert digest_of(name) in holding(measured, TABLE), f"adapters changed: {AGAIN}"
    assert set(ENGINES[name]) == set(found["samples"]), f"an engine is missing: {AGAIN}"
