"""The last run of all real parts together was of the adapters as they are."""

from pathlib import Path

from tests.hand_run_results import holding, newest
from tests.hardware.together.result import NAME, covered_digest

TABLE = Path(__file__).with_name("still_hold.md")
AGAIN = "run `make test-together` and commit the result it writes"


def test_the_stack_is_the_one_that_was_run():
    measured = newest(NAME)["settings"]["covered"]

    assert covered_digest() in holding(measured, TABLE), f"adapters changed: {AGAIN}"
