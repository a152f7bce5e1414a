"""Workspaces: copied, frozen, hashed, and given out again as they were."""

import os
import stat
import subprocess
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.storage.test_safe_dir import dig

from gyre.rollout.workspace import OPAQUE, Workspace, content_hash, copy
from gyre.types.errors import SandboxError


def fill(folder):
    folder.mkdir(exist_ok=True)
    (folder / "a.txt").write_text("a")
    (folder / "run").write_text("#!/bin/sh\n")
    (folder / "run").chmod(0o755)
    (folder / "deep" / "er").mkdir(parents=True)
    (folder / "deep" / "er" / "b").write_bytes(bytes(range(256)))
    (folder / "link").symlink_to("a.txt")
    (folder / "dangling").symlink_to("/no/such/file")
    (folder / "empty").mkdir()
    return folder


def test_a_workspace_begins_as_a_copy(tmp_path):
    files = fill(tmp_path / "files")
    workspace = Workspace(tmp_path / "e1")
    workspace.prepare(str(files))
    (workspace.live / "a.txt").write_text("changed")

    assert "a" == (files / "a.txt").read_text()
    assert os.access(workspace.live / "run", os.X_OK)
    assert "/no/such/file" == str((workspace.live / "dangling").readlink())


def test_preparing_again_forgets_what_a_death_left_half_done(tmp_path):
    workspace = Workspace(tmp_path)
    workspace.prepare(None)
    (workspace.live / "left").touch()
    workspace.prepare(None)

    assert [] == list(workspace.live.iterdir())


def test_a_frozen_state_is_out_of_reach_and_read_only(tmp_path):
    workspace = Workspace(tmp_path)
    fill(workspace.live)
    (workspace.live / "secret").write_text("s")
    (workspace.live / "secret").chmod(0)
    (workspace.live / "deep").chmod(0o100)
    state = workspace.freeze()

    assert not workspace.live.exists()
    assert workspace.frozen == tmp_path / state.folder
    for path in [workspace.frozen, *workspace.frozen.rglob("*")]:
        if not path.is_symlink():
            mode = path.stat().st_mode
            assert (0, stat.S_IRUSR) == (mode & 0o222, mode & stat.S_IRUSR)


def test_freezing_twice_gives_the_same(tmp_path):
    workspace = Workspace(tmp_path)
    fill(workspace.live)
    first = workspace.freeze()

    assert first == workspace.freeze() == Workspace(tmp_path).freeze()


def test_a_workspace_that_is_gone_or_replaced_by_a_link_is_lost(tmp_path):
    workspace = Workspace(tmp_path)

    assert workspace.freeze() is None
    workspace.live.symlink_to("/etc")
    assert workspace.freeze() is None


def test_a_copy_is_the_state_and_may_be_changed(tmp_path):
    workspace = Workspace(tmp_path)
    fill(workspace.live)
    state = workspace.freeze()
    with workspace.fresh(state) as (live, scratch):
        assert str(workspace.live) == live
        assert [] == list(Path(scratch).iterdir())
        assert state.reference == content_hash(workspace.live)
        (workspace.live / "a.txt").write_text("changed")
        (workspace.live / "deep" / "new").touch()
        (workspace.live / "deep").chmod(0)

    assert not workspace.live.exists()
    assert state.reference == content_hash(workspace.frozen)


def test_a_copy_that_is_not_the_state_is_not_given_out(tmp_path):
    workspace = Workspace(tmp_path)
    fill(workspace.live)
    state = workspace.freeze()
    (workspace.frozen / "a.txt").chmod(0o600)
    (workspace.frozen / "a.txt").write_text("b")

    with (
        pytest.raises(SandboxError, match="not those that were frozen") as error,
        workspace.fresh(state),
    ):
        pass
    assert not error.value.retryable
    assert not workspace.live.exists()


def test_where_sandboxes_stack_the_state_itself_is_given_out(tmp_path):
    """Only who may read is changed of it, and who lends his rights."""
    workspace = Workspace(tmp_path, stacks=True)
    fill(workspace.live)
    (workspace.live / "run").chmod(0o4755)
    (workspace.live / "deep").chmod(0o050)
    (workspace.live / "a.txt").chmod(0o200)
    before = (workspace.live / "a.txt").stat().st_ino
    state = workspace.freeze()
    with workspace.fresh(state) as (given, scratch):
        assert (str(tmp_path / state.folder), True) == (given, Path(scratch).is_dir())

    assert before == (workspace.frozen / "a.txt").stat().st_ino
    modes = [(workspace.frozen / name).stat().st_mode & 0o7777 for name in ("run", "deep", "a.txt")]
    assert [0o755, 0o750, 0o600] == modes
    assert state.reference == content_hash(workspace.frozen)


def test_a_stacked_state_that_has_changed_is_not_given_out(tmp_path):
    """Also where its times have been set back, and by a process that froze nothing itself."""
    workspace = Workspace(tmp_path, stacks=True)
    fill(workspace.live)
    state = workspace.freeze()
    changed = workspace.frozen / "a.txt"
    times = changed.stat()
    changed.write_text("b")
    os.utime(changed, ns=(times.st_atime_ns, times.st_mtime_ns))

    for one in (workspace, Workspace(tmp_path, stacks=True)):
        with pytest.raises(SandboxError, match="not those that were frozen"), one.fresh(state):
            pass


def test_what_was_written_to_a_root_belongs_to_the_state(tmp_path):
    references = []
    for name, text in [("one", "a"), ("two", "b")]:
        workspace = Workspace(tmp_path / name, stacks=True)
        workspace.prepare(None)
        (workspace.place / "root").mkdir(parents=True)
        (workspace.place / "root" / "made").write_text(text)
        references.append(workspace.freeze().reference)

    assert references[0] != references[1]
    assert "b" == (workspace.frozen_root / "made").read_text()
    assert references[1] == workspace.freeze().reference


@pytest.mark.parametrize("stacks", [True, False])
def test_a_state_is_found_where_its_folder_has_been_moved(tmp_path, stacks):
    workspace = Workspace(tmp_path / "run" / "e1", stacks=stacks)
    workspace.prepare(None)
    fill(workspace.live)
    state = workspace.freeze()
    (tmp_path / "run").rename(tmp_path / "moved")
    with Workspace(tmp_path / "moved" / "e1", stacks=stacks).fresh(state) as (given, _):
        found = Path(given, "a.txt").read_text()

    assert "a" == found
    assert not Path(state.folder).is_absolute()


def test_work_goes_on_from_what_was_frozen_and_leaves_that_as_it_was(tmp_path):
    """With what an overlay says of the folders below it."""
    first = Workspace(tmp_path, states=tmp_path / "0")
    fill(first.live)
    root = first.place / "root"
    (root / "hides").mkdir(parents=True)
    os.setxattr(root / "hides", OPAQUE, b"y")
    os.mknod(root / "gone", stat.S_IFCHR, os.makedev(0, 0))
    state = first.freeze()
    second = Workspace(tmp_path, states=tmp_path / "1")
    for _ in range(2):
        second.go_on(first)
        (second.live / "a.txt").write_text("changed")
    (second.live / "more").write_text("x")
    second.go_on(first)
    again = second.freeze()

    assert state.reference == again.reference
    assert state.folder != again.folder
    assert stat.S_ISCHR((second.frozen_root / "gone").lstat().st_mode)
    assert b"y" == os.getxattr(second.frozen_root / "hides", OPAQUE)


def test_files_are_put_in_place_of_what_has_their_names(tmp_path):
    """What an agent left there cannot lead them elsewhere."""
    workspace, outside = Workspace(tmp_path / "e"), tmp_path / "outside"
    workspace.prepare(None)
    outside.mkdir()
    (outside / "in").write_text("mine")
    (workspace.live / "link").symlink_to(outside)
    (workspace.live / "file").symlink_to(outside / "in")
    (workspace.live / "folder").mkdir()
    (workspace.live / "kept").write_text("kept")
    given = tmp_path / "given"
    (given / "link").mkdir(parents=True)
    for name in ("link/in", "file", "folder"):
        (given / name).write_text("given")
    workspace.put(str(given))

    assert "mine" == (outside / "in").read_text()
    assert ["given"] * 3 == [
        (workspace.live / name).read_text() for name in ("link/in", "file", "folder")
    ]
    assert "kept" == (workspace.live / "kept").read_text()


def test_a_closed_execution_leaves_what_is_kept(tmp_path):
    for keeps in (True, False):
        workspace = Workspace(tmp_path / str(keeps))
        workspace.prepare(None)
        workspace.place.mkdir()
        workspace.freeze()
        workspace.tidy(keeps=keeps)
        workspace.tidy(keeps=keeps)

        assert [keeps, False] == [workspace.frozen.exists(), workspace.place.exists()]


def test_what_is_no_file_is_left_out(tmp_path):
    before = content_hash(fill(tmp_path / "files"))
    os.mkfifo(tmp_path / "files" / "pipe")
    (tmp_path / "copy").mkdir()
    copy(tmp_path / "files", tmp_path / "copy")

    assert before == content_hash(tmp_path / "files") == content_hash(tmp_path / "copy")


CHANGES = {
    "contents": lambda at: (at / "a.txt").write_text("b"),
    "a name": lambda at: (at / "a.txt").rename(at / "b.txt"),
    "an empty folder": lambda at: (at / "empty").rmdir(),
    "who may execute": lambda at: (at / "run").chmod(0o644),
    "a link's target": lambda at: ((at / "link").unlink(), (at / "link").symlink_to("run")),
    "a link made a file": lambda at: ((at / "link").unlink(), (at / "link").write_text("a.txt")),
    "a border": lambda at: (at / "a.txt").rename(at / "empty" / "a.txt"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_the_hash_sees(change, tmp_path):
    before = content_hash(fill(tmp_path / "files"))
    CHANGES[change](tmp_path / "files")

    assert before != content_hash(tmp_path / "files")


def test_the_hash_does_not_see_times_or_permission_to_write(tmp_path):
    before = content_hash(fill(tmp_path / "files"))
    os.utime(tmp_path / "files" / "a.txt", (1, 1))
    (tmp_path / "files" / "a.txt").chmod(0o400)

    assert before == content_hash(tmp_path / "files")


names = st.binary(min_size=1, max_size=6).filter(
    lambda name: b"/" not in name and b"\0" not in name and name not in {b".", b".."}
)


@given(st.dictionaries(names, st.binary(max_size=20), max_size=5), st.randoms())
def test_the_hash_is_of_the_contents_however_they_came_there(contents, random):
    with tempfile.TemporaryDirectory() as made:
        hashes = []
        for number in range(2):
            folder = Path(made) / str(number)
            folder.mkdir()
            order = list(contents)
            random.shuffle(order)
            for name in order:
                (folder / os.fsdecode(name)).write_bytes(contents[name])
            hashes.append(content_hash(folder))
        (Path(made) / "copy").mkdir()
        copy(Path(made) / "0", Path(made) / "copy")

        assert hashes == [content_hash(Path(made) / "copy")] * 2


@pytest.mark.parametrize("stacks", [True, False])
def test_folders_of_any_depth_are_frozen_copied_and_removed(tmp_path, stacks):
    workspace = Workspace(tmp_path, stacks=stacks)
    workspace.prepare(None)
    dig(workspace.live)
    try:
        state = workspace.freeze()
        with workspace.fresh(state) as (folder, _):
            assert state.reference == content_hash(Path(folder))
        following = Workspace(tmp_path, stacks=stacks, states=tmp_path / "next")
        following.go_on(workspace)
        assert state.reference == content_hash(following.live)
        workspace.tidy(keeps=False)

        assert [] == list(tmp_path.iterdir())
    finally:
        subprocess.run(["rm", "-rf", str(tmp_path)], check=True)
