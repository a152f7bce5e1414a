"""A file is there whole, or as it was."""

from pathlib import Path

import pytest

from gyre.storage.files import replacing
from gyre.types.errors import ConfigError


def broken(path):
    with replacing(path) as part:
        part.write_text("half")
        raise ZeroDivisionError


def filling(path):
    with replacing(path):
        Path("/dev/full").write_text("more than fits")


def test_a_file_takes_its_name_at_the_end(tmp_path):
    path = tmp_path / "rows"
    path.write_text("old")
    with replacing(path) as part:
        part.write_text("new")
        before = path.read_text()

    assert ("old", "new") == (before, path.read_text())
    assert [path] == list(tmp_path.iterdir())


def test_an_error_leaves_everything_as_it_was(tmp_path):
    path = tmp_path / "rows"
    path.write_text("old")
    with pytest.raises(ZeroDivisionError):
        broken(path)

    assert "old" == path.read_text()
    assert [path] == list(tmp_path.iterdir())


def test_a_full_disk_is_said_in_a_word(tmp_path):
    with pytest.raises(ConfigError, match="rows: cannot be written: No space left on device"):
        filling(tmp_path / "rows")

    assert [] == list(tmp_path.iterdir())


def test_a_folder_that_is_not_there_is_said_in_a_word(tmp_path):
    with pytest.raises(ConfigError, match="rows: cannot be written: No such file or directory"):
        broken(tmp_path / "no" / "rows")


def test_only_the_owner_may_read_it(tmp_path):
    with replacing(tmp_path / "rows") as part:
        part.write_text("what agents saw")

    assert 0o600 == (tmp_path / "rows").stat().st_mode & 0o777
