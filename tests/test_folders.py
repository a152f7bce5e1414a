"""Folders of somebody else's: walked, written to and removed without a step outside."""

import os
import subprocess
from pathlib import Path

import pytest

from gyre import folders

LONG = "long" * 50
DEPTH = 25
"""So many folders of that name have a longer path than the kernel takes at once."""
CALLS = 1050
"""Deeper than Python calls itself."""


def dig(folder, depth=DEPTH, name=LONG):
    """That many folders in one another, with a file in the last."""
    at = os.open(folder, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir(name, dir_fd=at)
        below = os.open(name, os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = below
    os.close(os.open("last", os.O_CREAT | os.O_WRONLY, 0o600, dir_fd=at))
    os.close(at)


def num_open():
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.fixture
def deep(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    dig(folder, depth=CALLS, name="deep")
    yield folder
    subprocess.run(["rm", "-rf", str(folder)], check=True)


def test_a_walk_goes_to_any_depth_with_one_descriptor(deep):
    before = num_open()
    most, last = 0, []
    for visit in folders.visits(deep):
        most = max(most, num_open() - before)
        last = visit.entries

    assert ["last"] == [entry.name for entry in last]
    assert 1 == most
    assert before == num_open()


def test_what_is_deep_or_shut_can_be_removed(deep):
    (deep / "shut").mkdir()
    (deep / "shut" / "file").touch()
    (deep / "shut").chmod(0)
    folders.remove(deep)

    assert not deep.exists()


def test_removing_a_link_leaves_what_it_leads_to(tmp_path):
    (tmp_path / "kept").mkdir()
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "link").symlink_to(tmp_path / "kept")
    folders.remove(tmp_path / "folder")
    (tmp_path / "link").symlink_to(tmp_path / "kept")
    folders.remove(tmp_path / "link")
    folders.remove(tmp_path / "never there")

    assert ["kept"] == [path.name for path in tmp_path.iterdir()]


def test_a_walk_says_where_it_is(tmp_path):
    for name in ("a/b/c", "a/d", "e"):
        (tmp_path / name).mkdir(parents=True)
    found = [(visit.label, visit.up, visit.name) for visit in folders.visits(tmp_path)]

    assert [
        (b"", 0, None),
        (b"a", 0, "a"),
        (b"a/b", 0, "b"),
        (b"a/b/c", 0, "c"),
        (b"a/d", 2, "d"),
        (b"e", 2, "e"),
    ] == found


def test_paths_that_are_too_long_differ_where_they_differ(tmp_path):
    labels = []
    for name in ("long", "else"):
        folder = tmp_path / name
        folder.mkdir()
        dig(folder, name=name * 50)
        visit = list(folders.visits(folder))[-1]
        labels.append(visit.label_of(visit.entries[0]))
        folders.remove(folder)

    assert 2 == len(set(labels))
    assert 100 > max(map(len, labels))


@pytest.mark.parametrize("name", ["link", "folder/file", "in/../file", "/etc/passwd", "pipe", "in"])
def test_only_a_file_of_the_folder_itself_is_opened(tmp_path, name):
    inside = tmp_path / "inside"
    (inside / "in").mkdir(parents=True)
    (inside / "file").touch()
    (tmp_path / "file").touch()
    (inside / "link").symlink_to(tmp_path / "file")
    (inside / "folder").symlink_to(tmp_path)
    os.mkfifo(inside / "pipe")
    os.close(folders.opened(inside, "./file"))

    with pytest.raises((OSError, ValueError)):
        folders.opened(inside, name)


def test_writing_follows_no_link(tmp_path):
    outside, inside = tmp_path / "outside", tmp_path / "inside"
    outside.mkdir()
    inside.mkdir()
    (outside / "file").write_text("kept")
    (inside / "file").symlink_to(outside / "file")
    (inside / "folder").symlink_to(outside)
    folders.write(inside, "file", b"new")
    folders.write(inside, "folder/file", b"new")

    assert "kept" == (outside / "file").read_text()
    assert ["file"] == [path.name for path in outside.iterdir()]
    assert "new" == (inside / "folder" / "file").read_text() == (inside / "file").read_text()
