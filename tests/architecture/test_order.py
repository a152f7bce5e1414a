"""The order in which files are handed to workers names files that exist."""

from tests.conftest import LONGEST, TESTS


def test_the_longest_files_are_there():
    assert [] == [name for name in LONGEST if not (TESTS / name).is_file()]
