"""Images of containers: looked up, built from a folder, and read."""

import fcntl
import hashlib
import http.client
import io
import json
import tarfile
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from gyre.sandboxes.docker.api import Daemon, DaemonRefusal
from gyre.storage import safe_dir
from gyre.types.errors import SandboxError, wrap_errors

BUILT = "gyre-built"
"""Images that were built here are tagged with the hash of what they were built from."""
UNREADABLE = (OSError, RecursionError, tarfile.TarError, http.client.HTTPException)
"""What reading a folder of an image raises; folders in it may lie deeper than a path can name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """An image's name, and the folder in it where programs begin."""

    name: str
    workdir: str | None
    """Where its programs begin, if it says so."""


async def look_up(daemon: Daemon, name: str) -> Image:
    """SandboxError if the daemon does not have it; nothing is fetched from elsewhere."""
    try:
        found = await daemon.ask("GET", f"/images/{name}/json")
    except DaemonRefusal as error:
        if error.status != 404:
            raise
        message = f"image {name}: expected it at {daemon.path}, pulled, imported or built: {error}"
        raise SandboxError(message, retryable=False) from error
    workdir = (found.get("Config") or {}).get("WorkingDir") or None
    return Image(name=name, workdir=None if workdir == "/" else workdir)


def build(daemon: Daemon, folder: Path, within_s: float) -> str:
    """The name of an image made by the folder's Dockerfile, once for each content."""
    with wrap_errors(partial(SandboxError, retryable=False), f"image from {folder}"):
        context = _packed(folder)
    name = f"{BUILT}:{hashlib.sha256(context).hexdigest()[:32]}"
    # One process at a time builds from a folder; the others find the image made.
    with (folder / "Dockerfile").open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        try:
            daemon.ask_now("GET", f"/images/{name}/json")
        except DaemonRefusal as error:
            if error.status != 404:
                raise
            said = daemon.ask_now("POST", "/build", context, within_s, {"t": name, "forcerm": 1})
            _refuse_failure(folder, said)
    return name


def put_below(daemon: Daemon, container: str, inside: str, workspace: Path, aside: Path) -> None:
    """What the container has in that folder is in the workspace too, below what was there already.

    `aside` is a folder of the same file system that does not exist yet, and does not afterwards.
    """

    def unpack(answer: http.client.HTTPResponse) -> None:
        with tarfile.open(fileobj=answer, mode="r|") as archive:
            archive.extractall(aside, filter=_own)

    try:
        safe_dir.remove(aside)
        aside.mkdir(parents=True)
        daemon.read(f"/containers/{container}/archive", unpack, path=inside.rstrip("/"))
        for top in aside.iterdir():
            _merge(top, workspace)
    except DaemonRefusal as error:
        # A folder that an image names and does not have is made with the container.
        if error.status != 404:
            raise
    except UNREADABLE as error:
        raise SandboxError(f"{inside} of the image: {error}") from error
    finally:
        with suppress(OSError):
            safe_dir.remove(aside)


def _merge(source: Path, target: Path) -> None:
    for entry in list(source.iterdir()):
        there = target / entry.name
        if there.is_dir() and not there.is_symlink():
            if entry.is_dir() and not entry.is_symlink():
                _merge(entry, there)
        elif not there.exists() and not there.is_symlink():
            entry.rename(there)


def _own(member: tarfile.TarInfo, path: str) -> tarfile.TarInfo | None:
    """As it is, inside, and owned by this process's user; devices and pipes are left out."""
    if not (member.isreg() or member.isdir() or member.issym() or member.islnk()):
        return None
    kept = tarfile.tar_filter(member, path)
    if kept.islnk():
        # The filter looks where a file lies, and not at the other one that a hard link leads to.
        inside = Path(path).resolve()
        leads = (inside / kept.linkname).resolve()
        if not leads.is_relative_to(inside):
            raise tarfile.LinkOutsideDestinationError(kept, str(leads))
    mode = (kept.mode or 0) | (0o700 if kept.isdir() else 0o600)
    return kept.replace(mode=mode, uid=None, gid=None, uname=None, gname=None, deep=False)  # type: ignore[arg-type]


def _packed(folder: Path) -> bytes:
    """All its files, the same bytes for the same content."""

    def plain(member: tarfile.TarInfo) -> tarfile.TarInfo:
        member.uid = member.gid = 0
        member.uname = member.gname = ""
        member.mtime = 0
        return member

    if not (folder / "Dockerfile").is_file():
        raise OSError("expected a Dockerfile in it")
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for path in sorted(folder.rglob("*")):
            name = str(path.relative_to(folder))
            archive.add(path, name, recursive=False, filter=plain)
    return packed.getvalue()


def _refuse_failure(folder: Path, said: bytes) -> None:
    """A build that fails is answered as one that does not, line by line."""
    for line in said.splitlines():
        with suppress(ValueError, AttributeError):
            if error := json.loads(line).get("error"):
                raise SandboxError(f"image from {folder}: {error}", retryable=False)
