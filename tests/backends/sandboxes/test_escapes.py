"""Programs of a local sandbox try to get out, to see others, and to take all there is."""

import asyncio
import os
import socket
import subprocess
import threading
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.backends.sandboxes.inside import Inside, ran
from tests.contracts.sandbox import ESCAPE, wait_for
from tests.run.supervised import is_alive

from gyre.backends.sandboxes.local import PORT
from gyre.backends.sandboxes.view import DEVICES
from gyre.backends.sandboxes.watchdog import descendants
from gyre.words.errors import SandboxError
from gyre.words.sandboxes import Limits

BY_WATCHDOG = {"groups": {}}
"""As on a machine without control groups."""
GUARDS = [{}, BY_WATCHDOG]
SECRET = "river-under-the-bridge"
CONNECT = """
import socket, sys
for host, port in [a.rsplit(":", 1) for a in sys.argv[1:]]:
    try:
        with socket.create_connection((host, int(port)), timeout=2) as one:
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
                with met:
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
        tmp_path, "\n".join(f"(echo x > {path}) 2>/dev/null && echo {path}" for path in tried)
    )

    assert "" == output


def test_a_link_out_of_the_workspace_leads_nowhere(tmp_path):
    hidden = tmp_path / "hidden.txt"
    hidden.write_text(SECRET)
    _, output = ran(tmp_path / "one", f"ln -s {hidden} link; ln -s / all; cat link all{hidden}")

    assert SECRET not in output


def test_the_environment_of_the_host_is_not_there(tmp_path, monkeypatch):
    """Not in that of the first process either, whose launcher had it."""
    monkeypatch.setenv("HOST_SECRET", SECRET)
    status, output = ran(tmp_path, "env; cat /proc/*/environ | tr '\\0' '\\n'", OWN="mine")

    assert 0 == status
    assert SECRET not in output
    assert 2 <= output.count("OWN=mine")


def test_processes_of_the_host_are_neither_seen_nor_reached(tmp_path):
    with subprocess.Popen(["sleep", "60"]) as stranger:
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
            made={"proxy": lambda: ("127.0.0.1", proxy)},
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
        await other.start("echo > ready; exec sleep 60", KEY=SECRET)
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
    """Those of devices are the sandbox's own; the others are set to what they are."""
    before = [Path("/dev", name).stat().st_mode for name in DEVICES]
    devices = " ".join(f"/dev/{name}" for name in DEVICES)
    tried = "for x in /usr/bin/env /etc/services; do chmod $(stat -L -c %a $x) $x && echo $x; done"
    _, output = ran(tmp_path, f"{tried}; chmod 600 {devices}; ls -l /proc/*/fd /proc/1/exe")

    assert before == [Path("/dev", name).stat().st_mode for name in DEVICES]
    assert 2 == output.count("Read-only file system")
    assert "exe -> /memfd:" in output
    opened = {line.partition(" -> ")[2].partition(":")[0] for line in output.splitlines()}
    assert {"", "pipe", "anon_inode", "/memfd"} == {name for name in opened if "/proc/" not in name}


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


@pytest.mark.parametrize("guard", GUARDS, ids=["cgroup", "watchdog"])
def test_a_fork_bomb_stays_small(guard, tmp_path):
    """It is refused more processes, or killed for them, which takes longer the more there are."""
    bomb = "while :; do sleep 60 & done" if guard else "f() { f | f & }; f; sleep 1"
    inside = Inside(tmp_path, made={"most": Limits(processes=50)} | guard)

    async def explode():
        await inside.start(bomb)
        most = 0
        waiting = asyncio.create_task(inside.sandbox.wait())
        while not waiting.done():
            most = max(most, len(descendants(inside.sandbox.init, most=100)))
            await asyncio.sleep(0.02)
        await inside.sandbox.kill()
        return most, waiting.exception()

    most, error = asyncio.run(explode())

    assert 2 < most
    if guard is BY_WATCHDOG:
        assert isinstance(error, SandboxError)
        assert "processes" in str(error)
    else:
        assert most <= 51


@pytest.mark.parametrize("guard", GUARDS, ids=["cgroup", "watchdog"])
def test_a_memory_bomb_is_ended(guard, tmp_path):
    bomb = "x = []\nwhile True: x.append(bytearray(2**22))"
    (tmp_path / "workspace").mkdir()
    (tmp_path / "workspace" / "bomb.py").write_text(bomb)

    with pytest.raises(SandboxError, match="bytes of memory"):
        ran(
            tmp_path,
            "exec /usr/bin/python3 bomb.py",
            made={"most": Limits(memory_bytes=2**27)} | guard,
        )


def test_memory_without_a_process_is_little(tmp_path):
    status, _ = ran(tmp_path, "head -c 200000000 /dev/zero > /dev/shm/x")

    assert 0 != status


@pytest.mark.parametrize("where", [".", "$HOME", "/tmp"])
def test_filling_the_disk_is_ended(where, tmp_path):
    """Its one file is not over; all together are."""
    fill = f"cd {where}; i=0; while :; do head -c 5000000 /dev/zero > $i; i=$((i+1)); done"

    with pytest.raises(SandboxError, match="bytes on disk"):
        ran(tmp_path, fill, made={"most": Limits(disk_bytes=2**25)})


def test_a_file_over_the_limit_ends_its_writer(tmp_path):
    status, _ = ran(
        tmp_path, "exec head -c 50000000 /dev/zero > x", made={"most": Limits(disk_bytes=2**25)}
    )

    assert -25 == status
    assert 2**25 == (tmp_path / "workspace" / "x").stat().st_size


def test_nothing_survives_the_end(tmp_path):
    """A session of its own, a parent that is gone, signals ignored: all of it once more inside."""
    inside = Inside(tmp_path)

    async def end():
        await inside.start(
            f"{ESCAPE}; setsid sh -c '{ESCAPE.replace(chr(39), chr(34))}' & sleep 60"
        )
        await wait_for(inside.workspace / "escaped")
        pids = descendants(inside.sandbox.init)
        await inside.sandbox.kill()
        return pids

    pids = asyncio.run(end())

    assert 3 < len(pids)
    assert [] == [pid for pid in pids if is_alive(pid)]


def test_nothing_stays_on_the_machine(tmp_path):
    """Neither groups nor mounts."""
    before = Path("/proc/self/mountinfo").read_text()
    limits = Limits(memory_bytes=2**27, processes=50, cpus=1.0)
    inside = Inside(tmp_path, made={"most": limits})
    own = f"**/gyre-{inside.mark[:16]}"

    async def look():
        await inside.start("sleep 60")
        during = list(Path("/sys/fs/cgroup").glob(own))
        await inside.sandbox.kill()
        return during

    during = asyncio.run(look())

    assert during
    assert [] == list(Path("/sys/fs/cgroup").glob(own))
    assert before == Path("/proc/self/mountinfo").read_text()
