"""Programs of a local sandbox try to get out, to see others, and to stay."""

import asyncio
import os
import socket
import subprocess
import threading
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from tests.contracts.sandbox import ESCAPE, wait_for
from tests.controller.support.supervised import is_alive
from tests.sandboxes.support.inside import Inside, ran
from tests.waiting import until

from gyre.sandboxes.local.mounts import DEVICES, devices
from gyre.sandboxes.local.sandbox import PORT
from gyre.sandboxes.process_tree import descendants
from gyre.sandboxes.proxy_relay import Upstream
from gyre.types.tasks import Limits

SECRET = "river-under-the-bridge"
CONNECT = """
import socket, sys
for host, port in [a.rsplit(":", 1) for a in sys.argv[1:]]:
    try:
        with socket.create_connection((host, int(port)), timeout=60) as one:
            one.sendall(b"hello")
            print(host, "answered", one.recv(100).decode())
    except OSError as error:
        print(host, "refused")
"""


@contextmanager
def answering(host, answer):
    """A server of the host that says one thing to everybody."""
    with socket.create_server((host, 0)) as listening:

        def serve():
            while True:
                try:
                    met, _ = listening.accept()
                except OSError:
                    return
                # Whoever asked may be gone.
                with met, suppress(OSError):
                    met.recv(100)
                    met.sendall(answer)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield listening.getsockname()[1]
        finally:
            # Only closing it both ways wakes whoever waits in accept.
            listening.shutdown(socket.SHUT_RDWR)
            thread.join()


def test_files_of_the_host_are_not_there(tmp_path):
    hidden = tmp_path / "hidden.txt"
    hidden.write_text(SECRET)
    tried = f"cat {hidden} /etc/shadow /root/.bashrc /proc/1/root{hidden} /proc/1/cwd/../hidden.txt"
    searched = "find / -xdev -name 'hidden.txt' 2>/dev/null"
    _, output = ran(tmp_path / "one", f"{tried}; {searched}; ls /root /work /srv /sys /mnt")

    assert SECRET not in output
    assert "root:" not in output
    assert 10 == output.count("No such file") + output.count("Permission denied")


def test_files_of_the_system_cannot_be_changed(tmp_path):
    tried = ["/usr/x", "/etc/x", "/x", "/dev/x", "/home/x", "/run/x", "/proc/self/comm"]
    _, output = ran(
        tmp_path,
        "\n".join(f"(echo x > {path}) 2>/dev/null && echo {path}" for path in tried),
    )

    assert "" == output


def test_a_link_out_of_the_workspace_leads_nowhere(tmp_path):
    hidden = tmp_path / "hidden.txt"
    hidden.write_text(SECRET)
    _, output = ran(tmp_path / "one", f"ln -s {hidden} link; ln -s / all; cat link all{hidden}")

    assert SECRET not in output


def test_the_environment_of_the_host_is_not_there(tmp_path, monkeypatch):
    """Not in that of the first process either, which is bubblewrap."""
    monkeypatch.setenv("HOST_SECRET", SECRET)
    status, output = ran(tmp_path, "env; cat /proc/*/environ | tr '\\0' '\\n'", OWN="mine")

    assert 0 == status
    assert SECRET not in output
    assert 2 <= output.count("OWN=mine")


def test_processes_of_the_host_are_neither_seen_nor_reached(tmp_path):
    with subprocess.Popen(["sleep", "600"]) as stranger:
        script = f"kill -9 {stranger.pid}; kill -9 -1; ls -d /proc/[0-9]* | wc -l"
        _, output = ran(tmp_path, f"trap '' TERM; {script}")
        was_alive = stranger.poll() is None
        stranger.kill()

    assert was_alive
    assert "No such process" in output


def test_only_the_proxy_is_reached(tmp_path):
    own = socket.gethostbyname(socket.gethostname())
    (tmp_path / "workspace").mkdir()
    (tmp_path / "workspace" / "connect.py").write_text(CONNECT)
    with (
        answering("127.0.0.1", b"proxy") as proxy,
        answering("127.0.0.1", b"other") as other,
        answering("0.0.0.0", b"other") as everywhere,
    ):
        places = [f"127.0.0.1:{port}" for port in (PORT, proxy, other, everywhere)]
        places += [f"{own}:{everywhere}", "169.254.169.254:80", "1.1.1.1:443", "[::1]:80"]
        _, output = ran(
            tmp_path,
            f"/usr/bin/python3 connect.py {' '.join(places)}",
            made={"proxy": Upstream(lambda: ("127.0.0.1", proxy))},
        )

    lines = output.splitlines()
    assert "127.0.0.1 answered proxy" == lines[0]
    assert {"refused"} == {line.split()[-1] for line in lines[1:]}
    assert len(places) == len(lines)


def test_without_a_proxy_nobody_is_reached(tmp_path):
    (tmp_path / "workspace").mkdir()
    (tmp_path / "workspace" / "connect.py").write_text(CONNECT)
    _, output = ran(tmp_path, f"/usr/bin/python3 connect.py 127.0.0.1:{PORT}")

    assert "127.0.0.1 refused\n" == output


def test_sockets_of_the_host_without_a_path_are_not_reached(tmp_path):
    """Abstract ones belong to a network, and so does the right to find them."""
    name = f"gyre-test-{os.getpid()}"
    code = f"import socket; socket.socket(socket.AF_UNIX).connect(chr(0) + '{name}')"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("\0" + name)
        listening.listen()
        status, output = ran(tmp_path, f'/usr/bin/python3 -c "{code}"')

    assert 1 == status
    assert "ConnectionRefusedError" in output


def test_another_execution_is_out_of_sight(tmp_path):
    async def both():
        one, other = Inside(tmp_path / "one"), Inside(tmp_path / "other")
        (other.workspace / "plan.txt").write_text(SECRET)
        await other.start("echo > ready; exec sleep 600", KEY=SECRET)
        await wait_for(other.workspace / "ready")
        tried = [
            f"cat {other.workspace}/plan.txt",
            "cat /proc/*/environ",
            "cat /proc/*/cwd/plan.txt",
        ]
        tried += [
            "cat ../*/plan.txt",
            "find / -xdev -name plan.txt -exec cat {} +",
            "ls /tmp /dev/shm",
        ]
        await one.run("; ".join(tried))
        await other.sandbox.kill()
        return one.output

    assert SECRET not in asyncio.run(both())


def test_what_belongs_to_the_host_keeps_its_rights(tmp_path):
    """Devices, which all sandboxes share, belong to nobody in there; files are set as they are."""
    shown = [*(Path("/dev", name) for name in DEVICES), *devices()]
    before = [path.stat().st_mode for path in shown]
    named = " ".join(f"/dev/{name}" for name in DEVICES)
    tried = "for x in /usr/bin/env /etc/services; do chmod $(stat -L -c %a $x) $x && echo $x; done"
    _, output = ran(tmp_path, f"{tried}; chmod 600 {named}")

    assert before == [path.stat().st_mode for path in shown]
    assert len(DEVICES) == output.count("Operation not permitted")
    assert 2 == output.count("Read-only file system")


def test_processes_hold_nothing_of_the_host(tmp_path):
    """Neither does the first, whose file is a copy in memory, or out of sight with all it holds."""
    _, output = ran(tmp_path, "ls -l /proc/*/fd /proc/1/exe")
    led = {line.partition(" -> ")[2].partition(":")[0] for line in output.splitlines()}

    assert {name for name in led if "/proc/" not in name} <= {"", "pipe", "anon_inode", "/memfd"}
    assert ("exe -> /memfd:" in output) or ("'/proc/1/exe': Permission denied" in output)
    assert "-> pipe:" in output


def test_nobody_has_rights_or_gets_them(tmp_path):
    script = "grep -E '^(Cap(Prm|Eff|Inh|Amb)|NoNewPrivs|Seccomp):' /proc/self/status"
    _, output = ran(tmp_path, script)
    found = dict(line.replace(":", "").split() for line in output.splitlines())

    assert {"0" * 16} == {found[f"Cap{which}"] for which in ("Prm", "Eff", "Inh", "Amb")}
    assert ("1", "2") == (found["NoNewPrivs"], found["Seccomp"])


def test_settings_of_the_kernel_cannot_be_written(tmp_path):
    """What is written is what stands there, so that a hole does no harm to who runs the test."""
    pattern = "/proc/sys/kernel/core_pattern"
    script = f'x=$(cat {pattern}); printf %s "$x" > {pattern} && echo written'
    files = 'while read x; do [ -f "$x" ] && echo "$x"; done'
    search = f"find /proc -writable 2>/dev/null | {files} | grep -v exe"
    _, output = ran(tmp_path, f"{script}; {search}")

    assert "written" not in output
    assert "/proc/" not in output.replace(pattern, "")


@pytest.mark.parametrize(
    "tried",
    [
        "unshare -U true",
        "unshare -m true",
        "mount -t tmpfs none /tmp",
        "mount -o remount,rw /usr",
        "umount /proc",
        "mknod disk b 254 0 && head -c 1 disk",
        "chroot / true",
        "dmesg",
        "nsenter -t 1 -m true",
        "/usr/bin/python3 -c 'import ctypes as c; exit(c.CDLL(None).syscall(250, 0, -4, 1) < 0)'",
    ],
)
def test_doors_are_locked(tried, tmp_path):
    status, _ = ran(tmp_path, f"({tried}) 2>/dev/null")

    assert 0 != status


def test_nothing_survives_the_end(tmp_path):
    """A session of its own, a parent that is gone, signals ignored: all of it once more inside."""
    inside = Inside(tmp_path)

    async def end():
        await inside.start(
            f"{ESCAPE}; setsid sh -c '{ESCAPE.replace(chr(39), chr(34))}' & sleep 600"
        )
        await until(lambda: len(descendants(inside.sandbox.init)) > 3, "all that escape")
        pids = descendants(inside.sandbox.init)
        await inside.sandbox.kill()
        return pids

    pids = asyncio.run(end())

    assert [] == [pid for pid in pids if is_alive(pid)]


def test_nothing_stays_on_the_machine(tmp_path):
    """Neither groups nor mounts."""

    def mounts():
        """Those that have to do with it; others on this machine come and go."""
        lines = Path("/proc/self/mountinfo").read_text().splitlines()
        return [line for line in lines if str(tmp_path) in line]

    limits = Limits(memory_bytes=2**27, processes=50, cpus=1.0)
    inside = Inside(tmp_path, made={"most": limits})
    own = f"**/gyre-{inside.mark[:16]}"

    async def look():
        await inside.start("sleep 600")
        during = list(Path("/sys/fs/cgroup").glob(own))
        await inside.sandbox.kill()
        return during

    during = asyncio.run(look())

    assert during
    assert [] == list(Path("/sys/fs/cgroup").glob(own))
    assert [] == mounts()
