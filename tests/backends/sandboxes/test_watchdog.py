"""What programs use, where no kernel bounds it."""

from tests.test_folders import DEPTH, dig

from gyre import folders
from gyre.backends.sandboxes.watchdog import ENTRY_BYTES, size_of


def test_nothing_is_hidden_by_lying_deep(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    dig(folder)

    assert (DEPTH + 1) * ENTRY_BYTES <= size_of([folder, tmp_path / "never there"])
    folders.remove(folder)


def test_what_links_lead_to_is_not_counted(tmp_path):
    (tmp_path / "large").write_bytes(bytes(10**6))
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "link").symlink_to(tmp_path)

    assert ENTRY_BYTES == size_of([tmp_path / "folder"])
