"""What programs of a sandbox see of this machine, as arguments of a launcher.

Rule 1: nothing is seen that is not named here or by whoever makes the sandbox.
Rule 2: all of it is read-only but workspace, home and temporary files, or what lies on top of a
root of its own.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from gyre.sandboxes.local.roots import Mount

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
