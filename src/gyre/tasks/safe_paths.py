"""Task folders and archives from elsewhere: nothing in them leads outside, or they are refused."""

import hashlib
import lzma
import shutil
import stat
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from gyre.types.errors import TaskError, wrap_errors

ARCHIVES = (".tar", ".tar.gz", ".tgz", ".tar.xz", ".tar.bz2", ".zip")
BLOCK_BYTES = 2**16
MOST_BYTES = 2**33
MOST_ENTRIES = 1_000_000
"""Bounds of what an archive may unpack to, because a small one can hold a whole disk."""

DAMAGED = (
    OSError, ValueError, RuntimeError, EOFError, tarfile.TarError, zipfile.BadZipFile, zlib.error,
    lzma.LZMAError,
)  # fmt: skip
"""What reading an archive raises that is cut off, or was changed on its way."""


def is_archive(path: Path) -> bool:
    return path.name.endswith(ARCHIVES) and path.is_file()


def child(folder: Path, name: str, where: str) -> Path:
    """What a name from outside means inside the folder; TaskError if it leads out of it."""
    parts = PurePosixPath(name).parts
    is_odd = ".." in parts or "\\" in name or "\0" in name
    if not parts or PurePosixPath(name).is_absolute() or is_odd:
        raise TaskError(f"{where}: {name!r}: expected a path inside {folder.name}")
    found = folder.joinpath(*parts)
    if not found.resolve().is_relative_to(folder.resolve()):
        raise TaskError(f"{where}: {name!r}: leads out of {folder.name}")
    return found


def check(folder: Path, where: str) -> None:
    """Links stay inside, and there is nothing but files, folders and links; else TaskError."""
    root = folder.resolve()
    # RuntimeError: links in a circle.
    with wrap_errors(TaskError, where, (OSError, RuntimeError)):
        for path in sorted(folder.rglob("*")):
            mode = path.lstat().st_mode
            named = path.relative_to(folder)
            if stat.S_ISLNK(mode):
                target = path.readlink()
                if target.is_absolute() or not path.resolve().is_relative_to(root):
                    message = f"{where}: {named}: a link to {target}, which is outside the task"
                    raise TaskError(message)
            elif not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
                raise TaskError(f"{where}: {named}: expected files, folders and links")


def unpacked(archive: Path, cache: Path) -> Path:
    """A folder with what the archive holds, named by its contents; made once."""
    with wrap_errors(TaskError, archive):
        with archive.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        target = cache / digest
        if target.is_dir():
            return target
        cache.mkdir(parents=True, exist_ok=True)
        fresh = Path(tempfile.mkdtemp(dir=cache, prefix="unpacking-"))
    try:
        with wrap_errors(TaskError, archive, DAMAGED):
            if archive.name.endswith(".zip"):
                _unzip(archive, fresh)
            else:
                _untar(archive, fresh)
            check(fresh, str(archive))
            try:
                fresh.rename(target)
            except OSError:
                # Another process may have been faster, and its folder holds the same.
                if not target.is_dir():
                    raise
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    return target


def _untar(archive: Path, folder: Path) -> None:
    with tarfile.open(archive) as tar:
        left = _Left(str(archive))
        for member in tar:
            left.take(member.size)
            if _is_whole(member.name):
                continue
            to = child(folder, member.name, str(archive))
            if member.isdir():
                to.mkdir(parents=True, exist_ok=True)
            elif member.isreg():
                source = tar.extractfile(member)
                assert source is not None
                _parent(to, folder, str(archive))
                with source, to.open("xb") as file:
                    shutil.copyfileobj(source, file)
                to.chmod(0o755 if member.mode & 0o100 else 0o644)
            elif member.issym():
                _parent(to, folder, str(archive))
                to.symlink_to(member.linkname)
                # At once, because a later entry could be written through it.
                if not to.resolve().is_relative_to(folder.resolve()):
                    raise TaskError(f"{archive}: {member.name!r}: a link to {member.linkname}")
            else:
                raise TaskError(f"{archive}: {member.name!r}: expected files, folders and links")
        _expect_end(tar, left)


def _expect_end(tar: tarfile.TarFile, left: "_Left") -> None:
    """It ends as archives do; who reads one takes any damage between two entries for its end."""
    assert tar.fileobj is not None
    tar.fileobj.seek(tar.offset)
    if tar.fileobj.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
        message = f"expected another entry or the end at byte {tar.offset}; it is cut or damaged"
        raise tarfile.ReadError(message)
    # To the very end, where what is packed has its checksum.
    while block := tar.fileobj.read(BLOCK_BYTES):
        left.take(len(block))


def _unzip(archive: Path, folder: Path) -> None:
    with zipfile.ZipFile(archive) as whole:
        left = _Left(str(archive))
        for member in whole.infolist():
            left.take(member.file_size)
            if _is_whole(member.filename):
                continue
            to = child(folder, member.filename, str(archive))
            mode = member.external_attr >> 16
            if member.is_dir():
                to.mkdir(parents=True, exist_ok=True)
                continue
            if stat.S_ISLNK(mode):
                raise TaskError(f"{archive}: {member.filename!r}: expected files and folders")
            _parent(to, folder, str(archive))
            with whole.open(member) as source, to.open("xb") as file:
                shutil.copyfileobj(source, file)
            to.chmod(0o755 if mode & 0o100 else 0o644)


def _is_whole(name: str) -> bool:
    """The folder that was packed, which many programs put first."""
    return name in (".", "./")


def _parent(to: Path, folder: Path, where: str) -> None:
    to.parent.mkdir(parents=True, exist_ok=True)
    if not to.parent.resolve().is_relative_to(folder.resolve()):
        raise TaskError(f"{where}: {to.name!r}: leads out of the archive")


class _Left:
    """What an archive may still unpack."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._bytes = MOST_BYTES
        self._entries = MOST_ENTRIES

    def take(self, size: int) -> None:
        # A tar can say less than 0, which must not make room for more.
        self._bytes -= max(0, size)
        self._entries -= 1
        if self._bytes < 0 or self._entries < 0:
            message = f"{self._where}: more than {MOST_BYTES} bytes or {MOST_ENTRIES} entries"
            raise TaskError(message)


def folders_with(folder: Path, name: str, *, depth: int) -> Iterator[Path]:
    """Folders at most so deep that hold a file of that name, in the order of their paths."""
    if (folder / name).is_file():
        yield folder
        return
    if depth == 0:
        return
    for entry in sorted(folder.iterdir(), key=lambda path: path.name):
        if entry.is_dir() and not entry.is_symlink() and not entry.name.startswith("."):
            yield from folders_with(entry, name, depth=depth - 1)
