"""Folders of somebody else's: walked, written to and removed without a step outside."""

import errno
import os
import subprocess
from pathlib import Path

import pytest
from tests.module_patches import Overridden

from gyre.storage import safe_dir

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


def held(folder):
    """Descriptors by which this process holds the folder or something below it."""
    found = set()
    for one in Path("/proc/self/fd").iterdir():
        try:
            is_below = one.readlink().is_relative_to(folder)
        except OSError as error:
            # The one by which these were listed is gone; no path is so long but of what is below.
            is_below = error.errno == errno.ENAMETOOLONG
        if is_below:
            found.add(one.name)
    return found


@pytest.fixture
def deep(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    dig(folder, depth=CALLS, name="deep")
    yield folder
    subprocess.run(["rm", "-rf", str(folder)], check=True)


def test_a_walk_goes_to_any_depth_with_one_descriptor(deep):
    counts, last = set(), []
    for visit in safe_dir.visits(deep):
        counts.add(len(held(deep)))
        last = visit.entries

    assert ["last"] == [entry.name for entry in last]
    assert {1} == counts
    assert set() == held(deep)


def test_what_is_deep_or_shut_can_be_removed(deep):
    (deep / "shut").mkdir()
    (deep / "shut" / "file").touch()
    (deep / "shut").chmod(0)
    safe_dir.remove(deep)

    assert not deep.exists()


def test_removing_a_link_leaves_what_it_leads_to(tmp_path):
    (tmp_path / "kept").mkdir()
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "link").symlink_to(tmp_path / "kept")
    safe_dir.remove(tmp_path / "folder")
    (tmp_path / "link").symlink_to(tmp_path / "kept")
    safe_dir.remove(tmp_path / "link")
    safe_dir.remove(tmp_path / "never there")

    assert ["kept"] == [path.name for path in tmp_path.iterdir()]


def test_a_walk_says_where_it_is(tmp_path):
    for name in ("a/b/c", "a/d", "e"):
        (tmp_path / name).mkdir(parents=True)
    found = [(visit.label, visit.up, visit.name) for visit in safe_dir.visits(tmp_path)]

    assert [
        (b"", 0, None),
        (b"a", 0, "a"),
        (b"a/b", 0, "b"),
        (b"a/b/c", 0, "c"),
        (b"a/d", 2, "d"),
        (b"e", 2, "e"),
    ] == found


def walked(folder, at, do):
    """Where a forgiving walk was, and how far it went up to get there; `do` happens at `at`."""
    found = []
    for visit in safe_dir.visits(folder, forgives=True):
        found.append((visit.label.decode(), visit.up))
        if visit.label.decode() == at:
            do()
    return found


@pytest.fixture
def moving(tmp_path):
    """Folders of a program that is about to move some of them, none of which is held in the end."""
    for name in ("a/b/c", "a/b/d", "a/e", "z/y"):
        (tmp_path / name).mkdir(parents=True)
    yield tmp_path
    assert set() == held(tmp_path)


START = [("", 0), ("a", 0), ("a/b", 0), ("a/b/c", 0)]


def test_a_folder_that_moves_takes_nothing_away_but_itself(moving):
    found = walked(moving, "a/b/c", lambda: (moving / "a/b/c").rename(moving / "z/y/c"))

    rest = [("a/b/d", 1), ("a/e", 2), ("z", 2), ("z/y", 0), ("z/y/c", 0)]
    assert [*START, *rest] == found


@pytest.mark.parametrize("successor", [None, "folder", "link"])
def test_a_folder_that_is_not_in_its_place_any_more_is_passed_over(moving, successor):
    """Neither is what took its place taken for it."""

    def move():
        (moving / "a/b/c").rename(moving / "z/c")
        (moving / "a/b").rename(moving / "z/b")
        if successor == "folder":
            (moving / "a/b/d").mkdir(parents=True)
        if successor == "link":
            (moving / "a/b").symlink_to(moving / "z/b")

    rest = [("a/e", 2), ("z", 2), ("z/b", 0), ("z/b/d", 0), ("z/c", 2), ("z/y", 1)]
    assert [*START, *rest] == walked(moving, "a/b/c", move)


@pytest.mark.parametrize(
    ("most", "rest"),
    [
        (0, [("z", 3), ("z/c", 0), ("z/y", 1)]),
        (1, [("a/e", 2), ("z", 2), ("z/c", 0), ("z/y", 1)]),
        (2, [("a/b/d", 1), ("a/e", 2), ("z", 2), ("z/c", 0), ("z/y", 1)]),
    ],
)
def test_the_way_back_is_bounded_and_leads_to_the_top_at_least(moving, monkeypatch, most, rest):
    monkeypatch.setattr(safe_dir, "MOST_STEPS_BACK", most)
    found = walked(moving, "a/b/c", lambda: (moving / "a/b/c").rename(moving / "z/c"))

    assert [*START, *rest] == found


def test_a_walk_that_forgives_nothing_ends_where_a_folder_moves(moving):
    def walk():
        for visit in safe_dir.visits(moving):
            if visit.label == b"a/b/c":
                (moving / "a/b/c").rename(moving / "z/c")

    with pytest.raises(OSError, match="a folder was moved"):
        walk()


def test_a_folder_that_is_shut_hides_nothing_but_itself(moving, monkeypatch):
    """To its owner it says nothing of what it holds, nor of what holds it."""
    shut = (moving / "a/b/c").stat().st_ino

    def scandir(at):
        if os.fstat(at).st_ino == shut:
            raise PermissionError
        return os.scandir(at)

    def open_(path, flags, mode=0o777, *, dir_fd=None):
        if path == ".." and os.fstat(dir_fd).st_ino == shut:
            raise PermissionError
        return os.open(path, flags, mode, dir_fd=dir_fd)

    monkeypatch.setattr(safe_dir, "os", Overridden(os, scandir=scandir, open=open_))

    rest = [("a/b/d", 1), ("a/e", 2), ("z", 2), ("z/y", 0)]
    assert [*START, *rest] == walked(moving, None, None)


def test_paths_that_are_too_long_differ_where_they_differ(tmp_path):
    labels = []
    for name in ("long", "else"):
        folder = tmp_path / name
        folder.mkdir()
        dig(folder, name=name * 50)
        visit = list(safe_dir.visits(folder))[-1]
        labels.append(visit.label_of(visit.entries[0]))
        safe_dir.remove(folder)

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
    os.close(safe_dir.opened(inside, "./file"))

    with pytest.raises((OSError, ValueError)):
        safe_dir.opened(inside, name)


def test_writing_follows_no_link(tmp_path):
    outside, inside = tmp_path / "outside", tmp_path / "inside"
    outside.mkdir()
    inside.mkdir()
    (outside / "file").write_text("kept")
    (inside / "file").symlink_to(outside / "file")
    (inside / "folder").symlink_to(outside)
    safe_dir.write(inside, "file", b"new")
    safe_dir.write(inside, "folder/file", b"new")

    assert "kept" == (outside / "file").read_text()
    assert ["file"] == [path.name for path in outside.iterdir()]
    assert "new" == (inside / "folder" / "file").read_text() == (inside / "file").read_text()
