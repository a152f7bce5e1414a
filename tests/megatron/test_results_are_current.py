"""The last run with a real Megatron-core was of the trainer as it is."""

from pathlib import Path

import pytest
from tests.megatron.result import NAME, covered_digest
from tests.promises import holding, newest

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


def test_a_change_to_any_of_it_is_noticed(tmp_path):
    folder = tmp_path / "src" / "gyre" / "train"
    folder.mkdir(parents=True)
    (folder / "one.py").write_text("A = 1\n")
    before = covered_digest(tmp_path)
    (folder / "one.py").write_text("A = 2\n")
    changed = covered_digest(tmp_path)
    (folder / "one.py").rename(folder / "two.py")

    assert 3 == len({before, changed, covered_digest(tmp_path)})
