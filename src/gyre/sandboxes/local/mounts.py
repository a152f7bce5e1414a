"""What programs of a sandbox see of this machine, as arguments of bubblewrap.

Rule 1: nothing is seen that is not named here or by whoever makes the sandbox.
Rule 2: all of it is read-only but workspace, home and temporary files, or what lies on top of a
root of its own.
"""

import os
import secrets
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from gyre.types.errors import SandboxError

DEVICES = {"null": (1, 3), "zero": (1, 5), "full": (1, 7), "random": (1, 8), "urandom": (1, 9),
           "tty": (5, 0)}  # fmt: skip
CACHE = Path("~/.cache/gyre/devices")
NOBODY = 65534
"""Who owns them: somebody whom no sandbox knows, so that no program can take their rights."""
MODE = 0o666 | stat.S_IFCHR


def devices(folder: Path | None = None) -> tuple[Path, ...]:
    """Made at the first call, where this process may make any; else none.

    Under root, programs own the machine's devices, and could take them from everybody; so they
    see these. They are made once, because making files takes longer than all else in a sandbox.
    """
    try:
        place = CACHE.expanduser() if folder is None else folder
        if not _are_there(place):
            _make(place)
        return tuple(place / name for name in DEVICES) if _are_there(place) else ()
    except (OSError, RuntimeError):
        # RuntimeError: there is no home.
        return ()


def _are_there(place: Path) -> bool:
    """All of them, as they must be."""
    try:
        for name, (major, minor) in DEVICES.items():
            found = (place / name).lstat()
            is_right = (MODE, NOBODY, os.makedev(major, minor)) == (
                found.st_mode,
                found.st_uid,
                found.st_rdev,
            )
            if not is_right:
                return False
        # A file system may have been told that it holds no devices.
        (place / "null").open("rb").close()
    except OSError:
        return False
    return True


def _make(place: Path) -> None:
    """Each beside its place first, because others may make or use them at this moment."""
    if os.geteuid() != 0:
        raise PermissionError
    place.mkdir(parents=True, exist_ok=True, mode=0o700)
    for name, (major, minor) in DEVICES.items():
        fresh = place / f"{name}-{secrets.token_hex(4)}"
        try:
            os.mknod(fresh, MODE, os.makedev(major, minor))
            fresh.chmod(stat.S_IMODE(MODE))
            os.chown(fresh, NOBODY, NOBODY)
            fresh.rename(place / name)
        finally:
            with suppress(FileNotFoundError):
                fresh.unlink()


MOST_LINKS = 40
"""On one path, as the kernel has it."""

Way = tuple[str, ...]
"""Names of folders from the root of a sandbox on."""


def below_of(roots: Sequence[Path], workdir: str) -> tuple[Path, ...]:
    """What roots hold where programs work; links that lead out of one lead to this machine."""
    found = []
    for root in roots:
        # RuntimeError: links in a circle.
        with suppress(OSError, RuntimeError):
            inside = (root / workdir.lstrip("/")).resolve()
            if inside.is_relative_to(root.resolve()) and inside.is_dir():
                found.append(inside)
    return tuple(found)


def clear_ways(upper: Path, left: Path, targets: Iterable[str]) -> None:
    """Folders in an empty layer where programs have left something else on the way to a target.

    `left` is the layer that they wrote. Otherwise a file or a link there would keep whoever is to
    judge them from starting. Links of an image are its own, and stay.
    """
    for target in targets:
        way = [name for name in target.split("/") if name]
        at = left
        for name in way:
            at = at / name
            try:
                mode = at.lstat().st_mode
            except (FileNotFoundError, NotADirectoryError):
                break
            if not stat.S_ISDIR(mode):
                upper.joinpath(*way).mkdir(parents=True, exist_ok=True)
                break


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """Something that bubblewrap puts into a sandbox."""

    at: str
    """Its path inside."""
    layers: tuple[Path, ...] = ()
    """What it shows of this machine, from the top down; none: what the kernel makes, or a link."""
    leads: str | None = None
    """Where to, if it is a link."""


def refuse_ways_out(puts: Iterable[Mount]) -> None:
    """SandboxError if a bubblewrap that puts these there, in this order, would leave the sandbox.

    It makes what is missing while the machine's own root still stands beside the new one, and
    follows whatever links it meets in what it has put there before. OSError if that cannot be
    looked at.
    """
    standing = _Standing()
    for put in puts:
        standing.add(put)


class _Standing:
    """What bubblewrap has put together so far, each where it truly is, whatever links led there."""

    def __init__(self) -> None:
        self._puts: dict[Way, Mount] = {}

    def add(self, put: Mount) -> None:
        way = self._way(put.at)
        # It hides what stood below.
        seen = {at: one for at, one in self._puts.items() if at[: len(way)] != way}
        self._puts = seen | {way: put}

    def _way(self, target: str) -> Way:
        """To where a path leads, without links; SandboxError if one of them leads out."""
        here: Way = ()
        ahead = target.split("/")[::-1]
        num_links = 0
        while ahead:
            name = ahead.pop()
            if name in ("", "."):
                continue
            if name == "..":
                if not here:
                    raise _leads_out(target, here)
                here = here[:-1]
                continue
            path = (*here, name)
            holder, rest = self._holder(path)
            if holder is not None and holder.leads is not None:
                ahead += holder.leads.split("/")[::-1]
                continue
            if holder is None or not holder.layers:
                # Nobody looks there, and links of the kernel's lead anywhere.
                if num_links:
                    raise _leads_out(target, path)
                here = path
                continue
            link = _link_at(holder.layers, rest) if rest else None
            if link is None:
                here = path
                continue
            num_links += 1
            if link.startswith("/") or num_links > MOST_LINKS:
                raise _leads_out(target, path)
            ahead += link.split("/")[::-1]
        return here

    def _holder(self, path: Way) -> tuple[Mount | None, Way]:
        """The innermost that a path lies in, and the rest of the path."""
        for length in range(len(path), -1, -1):
            if (found := self._puts.get(path[:length])) is not None:
                return found, path[length:]
        return None, path


def _leads_out(target: str, at: Way) -> SandboxError:
    where = "/" + "/".join(at)
    message = f"root of a sandbox: {target}: a link on the way there leads out of it, at {where}"
    return SandboxError(message, retryable=False)


def _link_at(layers: Sequence[Path], path: Sequence[str]) -> str | None:
    """Where the link leads that stands there; None if it is none, or nothing is there.

    The layers above hide what lies below them, unless both are folders.
    """
    for layer in layers:
        at = layer
        for number, name in enumerate(path, start=1):
            at = at / name
            try:
                mode = at.lstat().st_mode
            # Nothing else: bubblewrap has rights that this process may lack, and sees more.
            except (FileNotFoundError, NotADirectoryError):
                break
            if number == len(path):
                return str(at.readlink()) if stat.S_ISLNK(mode) else None
            if not stat.S_ISDIR(mode):
                return None
    return None


NAMESPACES = (
    "--unshare-user", "--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts",
    "--unshare-cgroup-try", "--disable-userns", "--die-with-parent", "--new-session",
    "--hostname", "gyre",
)  # fmt: skip
SYSTEM = ("usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32")
ETC = (
    "alternatives", "bash.bashrc", "ca-certificates", "ca-certificates.conf", "crypto-policies",
    "debian_version", "gai.conf", "host.conf", "inputrc", "ld.so.cache", "ld.so.conf",
    "ld.so.conf.d", "locale.alias", "localtime", "login.defs", "magic", "mime.types",
    "nsswitch.conf", "os-release", "perl", "pki/tls/certs", "profile", "protocols", "services",
    "shells", "ssl/certs", "ssl/openssl.cnf", "terminfo", "timezone",
)  # fmt: skip
"""Of /etc, where secrets lie between what every program reads."""
COPIED_BYTES = 2**15
"""A file up to this is copied, because every mount makes all further ones slower."""
MASKED = ("kcore", "keys", "key-users", "kmsg", "latency_stats", "sched_debug", "timer_list")
"""Of /proc, what tells about the whole machine."""
SHM_BYTES = 2**26
NAME = "agent"
UID = 1000
WORKDIR = "/workspace"
VAR_TMP = "../tmp"
"""Where /var/tmp leads, beside the machine's own system folders."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layers:
    """A root of a sandbox's own: folders on top of each other, and what is written onto them."""

    lower: tuple[Path, ...]
    """From the bottom up."""
    upper: Path
    work: Path
    """Empty, for the kernel's use, on the file system of `upper`."""

    @property
    def from_the_top(self) -> tuple[Path, ...]:
        return (self.upper, *reversed(self.lower))


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxMounts:
    """What is where in one sandbox."""

    workspace: Path
    home: Path
    tmp: Path
    workdir: str = WORKDIR
    stacked: Layers | None = None
    """The workspace as it is found, with what is written beside it; None: written to itself."""
    root: Layers | None = None
    """None: the system folders of this machine."""
    readable: tuple[Path, ...] = ()
    """Under the same paths; what is not there is left out."""
    writable: Mapping[str, Path] = field(default_factory=dict)
    """Further folders, by their paths inside; what is not there is left out."""

    devices: tuple[Path, ...] = ()
    """In place of the machine's."""

    @property
    def home_inside(self) -> str:
        return f"/home/{NAME}" if self.root is None else "/root"

    @property
    def uid(self) -> int:
        """Programs of a root of their own expect to be its owner."""
        return UID if self.root is None else 0

    def arguments(self) -> Iterator[str]:
        """Those of bubblewrap, in the order in which things are put on top of each other."""
        yield from NAMESPACES
        yield from ("--uid", str(self.uid), "--gid", str(self.uid))
        if self.root is None:
            yield from _system()
        else:
            yield from _overlay(self.root, "/")
        yield from _kernel()
        for path in self.devices:
            yield from ("--dev-bind", str(path), f"/dev/{path.name}")
        yield from ("--bind", str(self.tmp), "/tmp")
        if self.root is None:
            yield from ("--symlink", VAR_TMP, "/var/tmp", "--dir", "/run")
        yield from ("--bind", str(self.home), self.home_inside)
        # After the folders they may lie in.
        for path in self.readable:
            yield from ("--ro-bind-try", str(path), str(path))
        if self.stacked is not None:
            yield from _overlay(self.stacked, self.workdir)
        else:
            yield from ("--bind", str(self.workspace), self.workdir)
        for inside, path in self.writable.items():
            yield from ("--bind-try", str(path), inside)
        if self.root is None:
            yield from ("--remount-ro", "/")
        yield from ("--chdir", self.workdir)

    def puts(self) -> Iterator[Mount]:
        """Where links may lead, in the order of the arguments: programs wrote to much of it."""
        if self.root is not None:
            yield Mount(at="/", layers=self.root.from_the_top)
        yield from (Mount(at="/proc"), Mount(at="/dev"), Mount(at="/tmp", layers=(self.tmp,)))
        if self.root is None:
            yield Mount(at="/var/tmp", leads=VAR_TMP)
        yield Mount(at=self.home_inside, layers=(self.home,))
        yield from _shown((str(path), path) for path in self.readable)
        stacked = self.stacked
        layers = (self.workspace,) if stacked is None else stacked.from_the_top
        yield Mount(at=self.workdir, layers=layers)
        yield from _shown(self.writable.items())

    def files(self) -> dict[str, bytes]:
        """Small files of the sandbox's own, by their paths inside."""
        if self.root is not None:
            return {}
        passwd = (
            f"{NAME}:x:{UID}:{UID}::{self.home_inside}:/bin/sh\n"
            "nobody:x:65534:65534::/:/bin/false\n"
        )
        return {
            **_copied(),
            "/etc/passwd": passwd.encode(),
            "/etc/group": f"{NAME}:x:{UID}:\nnogroup:x:65534:\n".encode(),
            "/etc/hosts": b"127.0.0.1 localhost gyre\n::1 localhost\n",
            "/etc/resolv.conf": b"",
        }


def read_system() -> None:
    """What this machine has is known from now on."""
    _system()
    _kernel()


def _shown(folders: Iterable[tuple[str, Path]]) -> Iterator[Mount]:
    """Those that are there; in the place of others lies what lay there before."""
    for at, path in folders:
        try:
            path.stat()
        except OSError:
            continue
        yield Mount(at=at, layers=(path,))


def _overlay(layers: Layers, at: str) -> Iterator[str]:
    for folder in layers.lower:
        yield from ("--overlay-src", str(folder))
    yield from ("--overlay", str(layers.upper), str(layers.work), at)


@cache
def _system() -> tuple[str, ...]:
    found: list[str] = []
    for name in SYSTEM:
        path = Path("/") / name
        if path.is_symlink():
            found += ("--symlink", str(path.readlink()), str(path))
        elif path.is_dir():
            found += ("--ro-bind", str(path), str(path))
    for name in ETC:
        path = Path("/etc") / name
        if path.exists() and str(path) not in _copied():
            found += ("--ro-bind", str(path), str(path))
    return tuple(found)


@cache
def _copied() -> dict[str, bytes]:
    """Small files of /etc, by their paths; what this user may not read nobody inside reads."""
    found = {}
    for path in (Path("/etc") / name for name in ETC):
        with suppress(OSError):
            if path.is_file() and path.stat().st_size <= COPIED_BYTES:
                found[str(path)] = path.read_bytes()
    return found


@cache
def _kernel() -> tuple[str, ...]:
    found = ["--proc", "/proc"]
    for name in MASKED:
        if Path("/proc", name).exists():
            found += ("--ro-bind", "/dev/null", f"/proc/{name}")
    # Under root the kernel's settings belong to the user that programs run as.
    found += ("--remount-ro", "/proc", "--dev", "/dev")
    found += ("--perms", "1777", "--size", str(SHM_BYTES), "--tmpfs", "/dev/shm")
    return (*found, "--remount-ro", "/dev")
