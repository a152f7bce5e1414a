"""What programs use, where no kernel bounds it."""

from tests.storage.test_safe_dir import DEPTH, dig

from gyre.sandboxes import process_tree
from gyre.sandboxes.process_tree import ENTRY_BYTES, size_of
from gyre.storage import safe_dir

MOST = 2**30


def test_nothing_is_hidden_by_lying_deep(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    dig(folder)

    assert (DEPTH + 1) * ENTRY_BYTES <= size_of([folder, tmp_path / "never there"], MOST)
    safe_dir.remove(folder)


def test_what_links_lead_to_is_not_counted(tmp_path):
    (tmp_path / "large").write_bytes(bytes(10**6))
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "link").symlink_to(tmp_path)

    assert ENTRY_BYTES == size_of([tmp_path / "folder"], MOST)


def test_a_folder_that_moves_while_it_is_counted_hides_nothing_behind_it(tmp_path, monkeypatch):
    for name in ("0a/x", "0b", "z"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "z" / "large").write_bytes(bytes(10**6))

    def visits(folder, **settings):
        for visit in safe_dir.visits(folder, **settings):
            if visit.label == b"0a/x":
                (tmp_path / "0a" / "x").rename(tmp_path / "0b" / "x")
            yield visit

    monkeypatch.setattr(process_tree, "visits", visits)

    assert 10**6 <= size_of([tmp_path], MOST)


def test_counting_ends_where_it_is_over(tmp_path):
    """Else it would not, where programs make or move folders faster than they are counted."""
    dig(tmp_path, depth=30, name="x")

    assert 11 * ENTRY_BYTES == size_of([tmp_path], 10 * ENTRY_BYTES)
