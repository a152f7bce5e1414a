"""The last run over real Mooncake was of the transport as it is."""

from pathlib import Path

from tests.promises import holding, newest
from tests.transports.result import NAME, covered_digest

TABLE = Path(__file__).with_name("still_hold.md")
AGAIN = "run `make test-transports` and commit the result it writes"


def test_what_moves_bytes_is_what_was_tried_over_mooncake():
    measured = newest(NAME)["settings"]["covered"]

    assert covered_digest() in holding(measured, TABLE), f"the transport changed: {AGAIN}"


def test_a_change_to_any_of_it_is_noticed(tmp_path):
    folder = tmp_path / "src" / "gyre" / "backends" / "transports"
    folder.mkdir(parents=True)
    (folder / "one.py").write_text("A = 1\n")
    before = covered_digest(tmp_path)
    (folder / "one.py").write_text("A = 2\n")
    changed = covered_digest(tmp_path)
    (folder / "one.py").rename(folder / "two.py")

    assert 3 == len({before, changed, covered_digest(tmp_path)})
