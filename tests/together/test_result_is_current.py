"""The last run of all real parts was of the adapters as they are, or the page says: none."""

from pathlib import Path

from tests.together.result import covered_digest, newest

PAGE = Path(__file__).parents[2] / "docs" / "backends.md"
NONE_YET = "No result of all of them together is committed yet."


def test_the_stack_is_the_one_that_was_run_or_the_page_says_that_none_was():
    found = newest()

    assert (found is None) == (NONE_YET in PAGE.read_text())
    if found is not None:
        again = "adapters changed: run `make test-together` and commit the result it writes"
        assert covered_digest() == found["settings"]["covered"], again


def test_a_change_to_any_adapter_is_noticed(tmp_path):
    for room in ("clusters", "engines", "transports"):
        (tmp_path / "src" / "gyre" / "backends" / room).mkdir(parents=True)
    found = {covered_digest(tmp_path)}
    for room in ("clusters", "engines", "transports"):
        (tmp_path / "src" / "gyre" / "backends" / room / "one.py").write_text("A = 1\n")
        found.add(covered_digest(tmp_path))

    assert 4 == len(found)
