"""The last results on a GPU were of the model plane as it is."""

from pathlib import Path

import pytest
from benchmarks.gpu.case_study import PATHS
from benchmarks.gpu.covered import NOT_MEASURED, ROOT, digest
from tests.promises import holding, newest

TABLE = Path(__file__).with_name("still_hold.md")
NAMES = ("gpu-agree", "gpu-generate", "gpu-step", "gpu-trees", "gpu-switch")
AGAIN = "run `make test-gpu` on a machine with a GPU and commit the results it writes"


@pytest.mark.parametrize("name", NAMES)
def test_the_sources_are_those_that_were_measured(name):
    measured = newest(name)["settings"]["covers"]

    assert digest() in holding(measured, TABLE), f"sources have changed: {AGAIN}"


def test_a_change_to_a_source_that_was_measured_is_noticed(tmp_path):
    for number, folder in enumerate(("src/gyre/model", "src/gyre/train")):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "one.py").write_text(f"A = {number}\n")
    before = digest(tmp_path)
    (tmp_path / "src/gyre/train/one.py").write_text("A = 2\n")

    assert before != digest(tmp_path)


def test_what_is_left_out_exists():
    assert [] == [name for name in sorted(NOT_MEASURED) if not (ROOT / name).is_file()]


def test_the_case_study_has_as_many_messages_as_the_trace():
    own = sum(path.own for path in PATHS)
    repeated = sum(path.shared for path in PATHS)

    assert 1347 == own + 2
    assert 1716 == own + repeated + len(PATHS)
