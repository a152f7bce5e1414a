"""The last run over real Mooncake was of the transport as it is."""

from pathlib import Path

from tests.hand_run_results import holding, newest
from tests.hardware.transports.result import NAME, covered_digest

TABLE = Path(__file__).with_name("still_hold.md")
AGAIN = "run `make test-transports` and commit the result it writes"


def test_what_moves_bytes_is_what_was_tried_over_mooncake():
    measured = newest(NAME)["settings"]["covered"]

    assert covered_digest() in holding(measured, TABLE), f"the transport changed: {AGAIN}"
