"""The last run over real nodes was of the adapter as it is."""

from pathlib import Path

from tests.clusters.result import NAME, covered_digest
from tests.promises import holding, newest

TABLE = Path(__file__).with_name("still_hold.md")
AGAIN = "run `make test-cluster` and commit the result it writes"


def test_what_starts_processes_is_what_real_nodes_were_asked_through():
    measured = newest(NAME)["settings"]["covered"]

    assert covered_digest() in holding(measured, TABLE), f"the adapter changed: {AGAIN}"


def test_a_change_to_any_of_it_is_noticed(tmp_path):
    folder = tmp_path / "src" / "gyre" / "backends" / "clusters"
    folder.mkdir(parents=True)
    (folder / "one.py").write_text("A = 1\n")
    before = covered_digest(tmp_path)
    (folder / "one.py").write_text("A = 2\n")
    changed = covered_digest(tmp_path)
    (folder / "one.py").rename(folder / "two.py")

    assert 3 == len({before, changed, covered_digest(tmp_path)})
