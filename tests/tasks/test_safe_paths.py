"""Archives and folders of tasks that try to lead elsewhere."""

import io
import tarfile
import zipfile

import pytest

from gyre.tasks import safe_paths
from gyre.types.errors import TaskError


def tarred(path, *members):
    """An archive of (name, text), or (name, target, kind) for what is no file."""
    with tarfile.open(path, "w:gz") as tar:
        for name, text, *kind in members:
            one = tarfile.TarInfo(name)
            if kind:
                one.type, one.linkname = kind[0], text
                tar.addfile(one)
            else:
                one.size, one.mode = len(text), 0o755 if name.endswith(".sh") else 0o644
                tar.addfile(one, io.BytesIO(text.encode()))
    return path


def zipped(path, *members):
    with zipfile.ZipFile(path, "w") as whole:
        for name, text in members:
            whole.writestr(name, text)
    return path


@pytest.mark.parametrize(("pack", "name"), [(tarred, "t.tar.gz"), (zipped, "t.zip")])
def test_an_archive_is_unpacked_once(pack, name, tmp_path):
    archive = pack(tmp_path / name, ("a/task.toml", "x"), ("a/tests/test.sh", "y"))
    folder = safe_paths.unpacked(archive, tmp_path / "cache")
    (folder / "mark").write_text("")

    assert safe_paths.is_archive(archive)
    assert ("x", "y") == (
        (folder / "a" / "task.toml").read_text(),
        (folder / "a" / "tests" / "test.sh").read_text(),
    )
    assert folder == safe_paths.unpacked(archive, tmp_path / "cache")
    assert (folder / "mark").exists()
    assert [folder] == list((tmp_path / "cache").iterdir())


def test_programs_stay_programs(tmp_path):
    archive = tarred(tmp_path / "t.tar.gz", ("run.sh", "x"), ("data", "y"))
    folder = safe_paths.unpacked(archive, tmp_path / "cache")

    assert (0o755, 0o644) == (
        (folder / "run.sh").stat().st_mode & 0o777,
        (folder / "data").stat().st_mode & 0o777,
    )


ATTACKS = {
    "above": [("../out", "x")],
    "in the middle": [("a/../../out", "x")],
    "absolute": [("/tmp/out-of-the-archive", "x")],
    "a link that leads out": [("a", "/etc", tarfile.SYMTYPE)],
    "through a link": [("a", "..", tarfile.SYMTYPE), ("a/out", "x")],
    "a hard link": [("b", "../secret", tarfile.LNKTYPE)],
    "a device": [("null", "", tarfile.CHRTYPE)],
    "a file twice": [("a", "x"), ("a", "y")],
}


@pytest.mark.parametrize("way", ATTACKS)
def test_an_archive_that_leads_out_is_refused_and_leaves_nothing(way, tmp_path):
    archive = tarred(tmp_path / "t.tar.gz", *ATTACKS[way])
    with pytest.raises(TaskError, match=r"t\.tar\.gz"):
        safe_paths.unpacked(archive, tmp_path / "inner" / "cache")

    assert [] == list((tmp_path / "inner" / "cache").iterdir())
    assert not (tmp_path / "inner" / "out").exists()


@pytest.mark.parametrize("name", ["../out", "a/../../out", "/out"])
def test_a_zip_that_leads_out_is_refused(name, tmp_path):
    with pytest.raises(TaskError, match="expected a path inside"):
        safe_paths.unpacked(zipped(tmp_path / "t.zip", (name, "x")), tmp_path / "cache")


def test_an_archive_that_is_none_is_named(tmp_path):
    for name in ("t.tar.gz", "t.zip"):
        (tmp_path / name).write_text("no archive")
        with pytest.raises(TaskError, match=name):
            safe_paths.unpacked(tmp_path / name, tmp_path / "cache")


def test_an_archive_that_would_fill_the_disk_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(safe_paths, "MOST_BYTES", 10)

    with pytest.raises(TaskError, match="more than 10 bytes"):
        safe_paths.unpacked(tarred(tmp_path / "t.tar.gz", ("a", "x" * 11)), tmp_path / "cache")


def test_a_negative_size_makes_no_room(tmp_path, monkeypatch):
    monkeypatch.setattr(safe_paths, "MOST_BYTES", 1_000)
    folder, file = tarfile.TarInfo("folder"), tarfile.TarInfo("file")
    folder.type, folder.size, file.size = tarfile.DIRTYPE, -(10**9), 5_000
    # As tarfile reads a header, so that it may say what tarfile would not write.
    head = bytearray(folder.tobuf(tarfile.GNU_FORMAT))
    head[148:156] = b"%06o\0 " % (sum(head[:148]) + 8 * ord(" ") + sum(head[156:512]))
    archive = tmp_path / "t.tar"
    archive.write_bytes(bytes(head) + file.tobuf() + bytes(5_120) + bytes(1_024))

    with pytest.raises(TaskError, match="more than 1000 bytes"):
        safe_paths.unpacked(archive, tmp_path / "cache")


@pytest.mark.parametrize("name", ["a\0b", "..", "a\\b", "", "/a"])
def test_a_name_that_is_no_path_inside_is_refused(name, tmp_path):
    with pytest.raises(TaskError, match="expected a path inside"):
        safe_paths.child(tmp_path, name, "a step")


@pytest.mark.parametrize("kind", ["", ":gz", ":xz", ":bz2"])
def test_an_archive_that_is_cut_is_never_taken_for_a_smaller_one(kind, tmp_path):
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode=f"w{kind}") as tar:
        for name in ("a/task.toml", "b/task.toml", "c/task.toml"):
            one = tarfile.TarInfo(name)
            one.size = 300
            tar.addfile(one, io.BytesIO(bytes(range(100)) * 3))
    data = whole.getvalue()
    archive = tmp_path / "t.tar"
    # Behind the three entries, of two blocks each, a tar that is not packed is filled up.
    length = 6 * tarfile.BLOCKSIZE if kind == "" else len(data) - 1
    for size in [*range(1, length, 97), length]:
        archive.write_bytes(data[:size])
        with pytest.raises(TaskError, match=r"t\.tar"):
            safe_paths.unpacked(archive, tmp_path / "cache")

    assert [] == list((tmp_path / "cache").iterdir())


@pytest.mark.parametrize("kind", ["tar", "tar:gz", "tar:xz", "zip"])
def test_an_archive_that_was_changed_on_its_way_is_whole_or_named(kind, tmp_path):
    """Whichever byte it is: what is unpacked has all three tasks, as far as its names go."""
    name, _, packing = kind.partition(":")
    members = [(f"{one}/task.toml", "text " * 50) for one in "abc"]
    archive = tmp_path / f"t.{name}"
    if name == "zip":
        zipped(archive, *members)
    else:
        with tarfile.open(archive, f"w:{packing}") as tar:
            for path, text in members:
                one = tarfile.TarInfo(path)
                one.size = len(text)
                tar.addfile(one, io.BytesIO(text.encode()))
    data = archive.read_bytes()
    for at in range(0, len(data), 61):
        archive.write_bytes(data[:at] + bytes([data[at] ^ 0x55]) + data[at + 1 :])
        try:
            folder = safe_paths.unpacked(archive, tmp_path / f"cache-{at}")
        except TaskError:
            continue
        assert 3 == len(list(folder.rglob("task.toml")))
