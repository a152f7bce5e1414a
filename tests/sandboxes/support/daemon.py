"""A container daemon of the tests' own, from Debian's packages, and a small image for it."""

import fcntl
import http.client
import io
import os
import shutil
import subprocess
import tarfile
import tempfile
import tomllib
from contextlib import contextmanager
from pathlib import Path

from tests.waiting import PATIENCE_S, wait_until

from gyre.sandboxes.docker.api import Daemon
from gyre.types.errors import SandboxError

PACKAGES = ("docker.io", "containerd", "runc", "busybox-static")
CACHE = Path.home() / ".cache" / "gyre" / "dockerd"
EXPECTED = Path(__file__).with_name("expected.toml")
IMAGE = "gyre-test:1"
GIVEN = {"app/given.txt": "from the image\n", "app/both.txt": "from the image\n"}
OPTIONS = [
    "--storage-driver=overlay2", "--iptables=false", "--ip6tables=false", "--bridge=none",
    "--ip-forward=false", "--default-ulimit", "nofile=20000:20000",
]  # fmt: skip
_ADMINISTRATOR = 1 << 21


def environment():
    """What this machine is, as the file of expectations calls it."""
    status = Path("/proc/self/status").read_text()
    rights = int(status.partition("CapEff:")[2].split()[0], 16)
    if os.geteuid() != 0 or not rights & _ADMINISTRATOR:
        return "no-root"
    if not (shutil.which("apt-get") and shutil.which("dpkg-deb")):
        return "root-without-apt"
    return "root-with-apt"


def expected(kind):
    """Levels of sandboxes of this kind on this machine, or why there are none."""
    return tomllib.loads(EXPECTED.read_text())[environment()][kind]


def fetched():
    """The folder that the packages are unpacked in; nothing is installed."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (CACHE / "complete").exists():
            _fetch()
    return CACHE / "root"


def _fetch():
    download = ["apt-get", "download", *PACKAGES]
    if subprocess.run(download, cwd=CACHE, capture_output=True, check=False).returncode != 0:
        subprocess.run(["apt-get", "update"], capture_output=True, check=True)
        subprocess.run(download, cwd=CACHE, capture_output=True, check=True)
    for package in CACHE.glob("*.deb"):
        subprocess.run(["dpkg-deb", "-x", str(package), str(CACHE / "root")], check=True)
        package.unlink()
    (CACHE / "complete").touch()


@contextmanager
def place():
    """A folder with a short path, because those of sockets are, and nothing of it afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="gyre-dockerd-"))
    try:
        yield folder
    finally:
        lines = Path("/proc/self/mountinfo").read_text().splitlines()
        for mounted in sorted((line.split()[4] for line in lines), reverse=True):
            if Path(mounted).is_relative_to(folder):
                subprocess.run(["umount", mounted], check=True)
        shutil.rmtree(folder)


@contextmanager
def running(folder):
    """The socket of a daemon that has the image and ends with the block."""
    root, socket = fetched(), folder / "docker.sock"
    paths = [str(root / name) for name in ("usr/sbin", "usr/bin")]
    options = [*OPTIONS, "-H", f"unix://{socket}", "--pidfile", str(folder / "pid")]
    options += ["--data-root", str(folder / "data"), "--exec-root", str(folder / "exec")]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            ["dockerd", *options],
            executable=str(root / "usr/sbin/dockerd"),
            env={"PATH": ":".join([*paths, os.environ["PATH"]]), "HOME": str(folder)},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        _wait_for(socket, process, folder / "log")
        query = {"fromSrc": "-", "repo": IMAGE.split(":")[0], "tag": IMAGE.split(":")[1]}
        Daemon(str(socket)).ask_now("POST", "/images/create", packed(root), query=query)
        yield str(socket)
    finally:
        process.terminate()
        process.wait(PATIENCE_S)


def _wait_for(socket, process, log):
    def answers():
        try:
            return Daemon(str(socket)).ask_now("GET", "/_ping")
        except (SandboxError, http.client.HTTPException):
            assert process.poll() is None, log.read_text(errors="replace")[-2000:]
            return None

    wait_until(answers, "an answer of the daemon")


def packed(root):
    """An archive with busybox and a folder of files, as an image's root."""
    busybox = root / "bin" / "busybox"
    names = subprocess.run([str(busybox), "--list"], capture_output=True, text=True, check=True)
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as archive:
        for name, mode in {"bin": 0o755, "tmp": 0o1777, "app": 0o755, "root": 0o700}.items():
            archive.addfile(_entry(name, tarfile.DIRTYPE, mode))
        archive.add(busybox, "bin/busybox")
        for name in set(names.stdout.split()) - {"busybox"}:
            link = _entry(f"bin/{name}", tarfile.SYMTYPE)
            link.linkname = "busybox"
            archive.addfile(link)
        for name, text in GIVEN.items():
            file = _entry(name, tarfile.REGTYPE)
            file.size = len(text)
            archive.addfile(file, io.BytesIO(text.encode()))
    return data.getvalue()


def _entry(name, kind, mode=0o644):
    entry = tarfile.TarInfo(name)
    entry.type, entry.mode = kind, mode
    return entry
