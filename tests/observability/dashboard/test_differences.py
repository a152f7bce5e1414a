"""What became of a folder's files."""

import os

import pytest

from gyre.observability.dashboard import execution_view
from gyre.observability.dashboard.execution_view import differences


@pytest.fixture
def sides(tmp_path):
    for name in ("before", "after"):
        (tmp_path / name).mkdir()
    return tmp_path / "before", tmp_path / "after"


def test_files_that_came_went_or_changed_are_told_by_path(sides):
    before, after = sides
    (before / "same").write_text("x\n")
    (after / "same").write_text("x\n")
    (before / "gone").write_text("a\n")
    (before / "notes").write_text("one\ntwo\n")
    (after / "notes").write_text("one\nthree\n")
    (after / "src").mkdir()
    (after / "src" / "new.py").write_text("print()\n")
    found = differences(before, after)

    assert [
        ("gone", "removed", 2, None, ("@@ -1 +0,0 @@", "-a")),
        ("notes", "changed", 8, 10, ("@@ -1,2 +1,2 @@", " one", "-two", "+three")),
        ("src/new.py", "added", None, 8, ("@@ -0,0 +1 @@", "+print()")),
    ] == [
        (one.path, one.change, one.before_bytes, one.after_bytes, one.lines) for one in found.files
    ]


def test_an_empty_beginning_makes_everything_new(sides):
    (sides[1] / "a").write_text("1")

    assert [("a", "added")] == [(one.path, one.change) for one in differences(None, sides[1]).files]


def test_links_are_named_and_never_followed(sides, tmp_path):
    before, after = sides
    (tmp_path / "secret").write_text("secret\n")
    (before / "a").write_text("plain\n")
    (after / "a").symlink_to(tmp_path / "secret")
    (after / "folder").symlink_to(tmp_path)
    found = differences(before, after)

    assert [("a", None), ("folder", None)] == [(one.path, one.lines) for one in found.files]
    assert f"a link to {tmp_path / 'secret'}" == found.files[0].note


def test_what_is_no_plain_file_is_not_opened(sides):
    os.mkfifo(sides[1] / "pipe")

    assert [("pipe", "not a plain file")] == [
        (one.path, one.note) for one in differences(*sides).files
    ]


def test_bytes_that_are_no_text_are_told_by_their_size(sides):
    (sides[1] / "image").write_bytes(b"\0\1\2")
    (sides[1] / "latin").write_bytes(b"caf\xe9")

    assert [("image", 3, "not text"), ("latin", 4, "not text")] == [
        (one.path, one.after_bytes, one.note) for one in differences(*sides).files
    ]


def test_large_files_and_long_texts_are_told_by_their_size(sides, monkeypatch):
    monkeypatch.setattr(execution_view, "MOST_BYTES", 10)
    monkeypatch.setattr(execution_view, "MOST_LINES", 3)
    (sides[1] / "a").write_text("1\n2\n")
    (sides[1] / "b").write_text("1\n2\n")
    (sides[1] / "c").write_text("x" * 11)

    assert [None, "more lines than are shown", "too large to show"] == [
        one.note for one in differences(*sides).files
    ]


def test_a_large_file_is_the_same_while_size_and_time_are(sides, monkeypatch):
    monkeypatch.setattr(execution_view, "MOST_BYTES", 10)
    for side, text in zip(sides, ("x" * 20, "x" * 19 + "y"), strict=True):
        (side / "a").write_text(text)
        os.utime(side / "a", ns=(1, 1))
        (side / "b").write_text(text)
    os.utime(sides[0] / "b", ns=(2, 2))

    assert ["b"] == [one.path for one in differences(*sides).files]


def test_of_many_files_the_rest_is_counted(sides, monkeypatch):
    monkeypatch.setattr(execution_view, "MOST_FILES", 2)
    for name in "abc":
        (sides[1] / name).write_text(name)
    found = differences(*sides)

    assert (["a", "b"], 1, False) == (
        [one.path for one in found.files],
        found.num_left_out,
        found.is_cut,
    )


def test_a_folder_without_end_is_cut(sides, monkeypatch):
    monkeypatch.setattr(execution_view, "MOST_ENTRIES", 2)
    for name in "abc":
        (sides[1] / name).write_text(name)

    assert differences(*sides).is_cut


def test_names_that_are_no_text_can_be_told(sides):
    (sides[1] / os.fsdecode(b"caf\xe9")).write_text("x")

    assert ["caf\ufffd"] == [one.path for one in differences(*sides).files]


def test_what_lies_deeper_than_a_path_can_say_is_not_told(sides):
    _, after = sides
    (after / "a").write_text("1\n")
    at = os.open(after, os.O_RDONLY)
    try:
        for _ in range(30):
            os.mkdir("d" * 200, dir_fd=at)
            below = os.open("d" * 200, os.O_RDONLY, dir_fd=at)
            os.close(at)
            at = below
        os.close(os.open("deep", os.O_WRONLY | os.O_CREAT, dir_fd=at))
        found = differences(None, after)
    finally:
        os.close(at)

    assert ["a"] == [one.path for one in found.files]
