"""The last run with a real Megatron-core was of the trainer as it is."""

from pathlib import Path

import pytest
from tests.hand_run_results import holding, newest
from tests.hardware.megatron.result import NAME, covered_digest

TABLE = Path(__file__).with_name("still_hold.md")
AGAIN = {
    "cpu": "run `make test-megatron` and commit the result it writes",
    "cuda": "run `scripts/megatron --gpu` on a GPU and commit the result it writes",
}


@pytest.mark.parametrize("device", AGAIN)
def test_the_trainer_is_what_megatron_was_run_with(device):
    found = newest(NAME, such=lambda one: one["settings"]["device"] == device)
    measured = found["settings"]["covered"]

    assert covered_digest() in holding(measured, TABLE), f"the trainer changed: {AGAIN[device]}"
