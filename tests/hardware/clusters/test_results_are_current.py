"""The last run over real nodes was of the adapter as it is."""

from pathlib import Path

from tests.hand_run_results import holding, newest
from tests.hardware.clusters.result import NAME, covered_digest

TABLE = Path(__file__).with_name("still_hold.md")
AGAIN = "run `make test-cluster` and commit the result it writes"


def test_what_starts_processes_is_what_real_nodes_were_asked_through():
    measured = newest(NAME)["settings"]["covered"]

    assert covered_digest() in holding(measured, TABLE), f"the adapter changed: {AGAIN}"
