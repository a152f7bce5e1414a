"""The last runs against real engines were of the adapters as they are."""

from pathlib import Path

import pytest
from real.result import ENGINES, OF_CELLS, digest_of
from tests.promises import holding, newest

TABLE = Path(__file__).with_name("still_hold.md")
AGAIN = "run `make test-engines` and commit the results it writes"


@pytest.mark.parametrize("name", sorted(ENGINES))
def test_the_adapters_are_those_that_real_engines_were_asked_through(name):
    found = newest(name)
    measured = found["settings"]["adapters"]

    assert digest_of(name) in holding(measured, TABLE), f"adapters changed: {AGAIN}"
    assert set(ENGINES[name]) == set(found["samples"]), f"an engine is missing: {AGAIN}"


def test_what_is_of_cells_alone_is_there():
    adapters = Path(__file__).parents[2] / "src" / "gyre" / "backends" / "engines"

    assert set() == OF_CELLS - {path.name for path in adapters.glob("*.py")}


def test_a_change_to_any_adapter_is_noticed(tmp_path):
    (tmp_path / "one.py").write_text("A = 1\n")
    (tmp_path / "two.py").write_text("B = 2\n")
    before = digest_of("engines", tmp_path)
    (tmp_path / "two.py").write_text("B = 3\n")
    changed = digest_of("engines", tmp_path)
    (tmp_path / "two.py").rename(tmp_path / "three.py")

    assert 3 == len({before, changed, digest_of("engines", tmp_path)})
