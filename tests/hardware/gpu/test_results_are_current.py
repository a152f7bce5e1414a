"""The last results on a GPU were of the model plane as it is."""

from pathlib import Path

import pytest
from benchmarks.gpu.case_study import PATHS
from benchmarks.gpu.covered import digest
from tests.hand_run_results import holding, newest

TABLE = Path(__file__).with_name("still_hold.md")
NAMES = ("gpu-agree", "gpu-generate", "gpu-step", "gpu-trees", "gpu-switch")
AGAIN = "run `make test-gpu` on a machine with a GPU and commit the results it writes"


@pytest.mark.parametrize("name", NAMES)
def test_the_sources_are_those_that_were_measured(name):
    measured = newest(name)["settings"]["covers"]

    assert digest() in holding(measured, TABLE), f"sources have changed: {AGAIN}"


def test_the_case_study_has_as_many_messages_as_the_trace():
    own = sum(path.own for path in PATHS)
    repeated = sum(path.shared for path in PATHS)

    assert 1347 == own + 2
    assert 1716 == own + repeated + len(PATHS)
