"""Containers hold programs back, keep their workspace, and leave nothing behind."""

import asyncio
import json
import os
import secrets
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from tests.contracts.sandbox import ESCAPE, wait_for
from tests.controller.support.supervised import is_alive
from tests.sandboxes.local.test_escapes import SECRET, answering
from tests.sandboxes.support.daemon import IMAGE, expected, place, running
from tests.sandboxes.support.script_sandbox import ScriptSandbox
from tests.waiting import until, wait_until

from gyre.sandboxes import process_tree
from gyre.sandboxes.docker import exec as program
from gyre.sandboxes.docker.api import Daemon
from gyre.sandboxes.docker.container import LABEL, Container
from gyre.sandboxes.docker.sandbox import DockerSandbox
from gyre.sandboxes.local.sandbox import PORT
from gyre.sandboxes.proxy_relay import Upstream
from gyre.types.errors import SandboxError
from gyre.types.tasks import Limits


class Inside(ScriptSandbox):
    def __init__(self, folder, socket, place=None, made=None):
        image = {"image": IMAGE, "socket": socket}
        super().__init__(folder, image | (place or {}), made or {})

    def make(self, settings):
        return DockerSandbox(self.mark, Container(**settings), **self.made)


def ran(folder, socket, script, *, place=None, made=None, **variables):
    """The status and the output of a script."""
    inside = Inside(folder, socket, place, made)
    status = asyncio.run(inside.run(script, **variables))
    return status, inside.output


def containers(socket, **filters):
    query = {"all": 1, "filters": json.dumps(filters)}
    return json.loads(Daemon(socket).ask_now("GET", "/containers/json", query=query))


def test_the_levels_are_those_that_this_machine_is_expected_to_have(tmp_path, docker):
    limits = Limits(memory_bytes=2**28, processes=50, cpus=1.0, disk_bytes=2**28)
    inside = Inside(tmp_path, docker, made={"most": limits})
    asyncio.run(inside.sandbox.prepare(str(inside.workspace)))

    assert expected("docker") == list(inside.sandbox.levels)


def test_what_is_not_bounded_is_no_level(tmp_path, docker):
    inside = Inside(tmp_path, docker)
    asyncio.run(inside.sandbox.prepare(str(inside.workspace)))

    assert ("files", "network", "privileges", "processes", "seccomp") == inside.sandbox.levels


def test_only_the_proxy_is_reached(tmp_path, docker):
    """The proxy's own port of the host, another one, the host by its address, and the world."""
    with answering("127.0.0.1", b"proxy") as proxy, answering("0.0.0.0", b"other") as other:
        places = [("127.0.0.1", PORT), ("127.0.0.1", proxy), ("127.0.0.1", other)]
        places += [("169.254.169.254", 80), ("172.17.0.1", other), ("1.1.1.1", 443)]
        tried = [f"echo hello | nc -w 60 {host} {port} 2>&1; echo" for host, port in places]
        _, output = ran(
            tmp_path,
            docker,
            "\n".join(tried) + "\nls /sys/class/net",
            made={"proxy": Upstream(lambda: ("127.0.0.1", proxy))},
        )

    assert "proxy" == output.splitlines()[0]
    assert 1 == output.count("proxy")
    assert "other" not in output
    assert ["lo"] == output.splitlines()[-1:]


def test_without_a_proxy_nobody_is_reached(tmp_path, docker):
    status, _ = ran(tmp_path, docker, f"nc -w 60 127.0.0.1 {PORT} < /dev/null")

    assert 0 != status


def test_the_proxy_is_where_the_sandbox_says(tmp_path, docker):
    sandbox = Inside(tmp_path, docker).sandbox

    assert f"http://127.0.0.1:{PORT}/v1?x=1" == sandbox.address("http://10.0.0.1:99/v1?x=1")
    with pytest.raises(SandboxError, match="expected an http:// address"):
        sandbox.address("https://host/v1")


def test_the_environment_of_the_host_is_not_there(tmp_path, docker, monkeypatch):
    monkeypatch.setenv("HOST_SECRET", SECRET)
    _, output = ran(tmp_path, docker, "env; cat /proc/*/environ | tr '\\0' '\\n'", OWN="mine")

    assert SECRET not in output
    assert 2 <= output.count("OWN=mine")


def test_a_key_is_seen_by_its_program_alone(tmp_path, docker):
    """Not by whoever asks the daemon what a container is made of."""

    async def told():
        inside = Inside(tmp_path, docker)
        await inside.start("echo > ready; exec sleep 600", KEY=SECRET)
        await wait_for(inside.workspace / "ready")
        identity = containers(docker, label=[f"{LABEL}={inside.mark}"])[0]["Id"]
        said = Daemon(docker).ask_now("GET", f"/containers/{identity}/json").decode()
        await inside.sandbox.kill()
        return said

    assert SECRET not in asyncio.run(told())


def test_nobody_has_rights_or_gets_them(tmp_path, docker):
    script = "grep -E '^(Cap(Prm|Eff|Inh|Amb|Bnd)|NoNewPrivs|Seccomp):' /proc/self/status"
    _, output = ran(tmp_path, docker, script)
    found = dict(line.replace(":", "").split() for line in output.splitlines())

    assert {"0" * 16} == {found[f"Cap{which}"] for which in ("Prm", "Eff", "Inh", "Amb", "Bnd")}
    assert ("1", "2") == (found["NoNewPrivs"], found["Seccomp"])


DOORS = (
    "mount -t tmpfs none /tmp", "umount /proc", "mknod disk b 254 0", "chroot / true",
    "unshare -m true", "dmesg", "chown 1000 given.txt",
)  # fmt: skip


def test_doors_are_locked(tmp_path, docker):
    tried = "; ".join(f"({one}) > /dev/null 2>&1 && echo '{one}'" for one in DOORS)
    status, opened = ran(tmp_path, docker, f"{tried}; true && echo tried; exit 3")

    assert (3, "tried\n") == (status, opened)


def test_files_of_the_host_are_not_there(tmp_path, docker):
    hidden = tmp_path / "hidden.txt"
    hidden.write_text(SECRET)
    _, output = ran(
        tmp_path / "one", docker, f"cat {hidden} /proc/1/root{hidden} {docker}; ls /work"
    )

    assert SECRET not in output
    assert 4 == output.count("No such file")


def test_killing_everybody_ends_nobody_else(tmp_path, docker):
    """The first process and what holds it are left, or come back."""
    with subprocess.Popen(["sleep", "600"]) as stranger:
        status, output = ran(tmp_path, docker, "kill -9 -1; sleep 0.2; echo alive; exit 5")
        was_alive = stranger.poll() is None
        stranger.kill()

    assert (5, "alive\n", True) == (status, output, was_alive)


def test_a_fork_bomb_stays_small(tmp_path, docker):
    inside = Inside(tmp_path, docker, made={"most": Limits(processes=20)})
    script = "i=0; while [ $i -lt 60 ]; do sleep 600 & i=$((i+1)); done; ls -d /proc/[0-9]* | wc -l"
    asyncio.run(inside.run(script))

    assert "can't fork" in inside.output
    assert not [line for line in inside.output.split() if line.isdigit() and int(line) > 25]


def test_a_memory_bomb_is_ended(tmp_path, docker):
    with pytest.raises(SandboxError, match="bytes of memory"):
        ran(
            tmp_path,
            docker,
            "exec awk 'BEGIN { x = \"x\"; while (1) x = x x }'",
            made={"most": Limits(memory_bytes=2**25)},
        )


@pytest.mark.parametrize("where", [".", "$HOME", "/tmp", "/var"])
def test_filling_the_disk_is_ended(where, tmp_path, docker, monkeypatch):
    """On the image too."""
    monkeypatch.setattr(process_tree, "DISK_S", 0.05)
    one_more = "head -c 2000000 /dev/zero > $i; i=$((i+1))"
    fill = f"i=0; while [ $i -lt 20 ]; do {one_more}; done; sleep 600"

    with pytest.raises(SandboxError, match="bytes on disk"):
        ran(
            tmp_path,
            docker,
            f"mkdir -p {where}; cd {where}; {fill}",
            made={"most": Limits(disk_bytes=2**24)},
        )


def test_a_file_over_the_limit_ends_its_writer(tmp_path, docker):
    limits = {"most": Limits(disk_bytes=2**22)}
    try:
        status, _ = ran(tmp_path, docker, "exec head -c 9000000 /dev/zero > x", made=limits)
    except SandboxError as error:
        # Whoever looks after the disk may see it full before the writer meets its own limit.
        assert "bytes on disk; 4194304 are allowed" in str(error)  # noqa: PT017
    else:
        assert -signal.SIGXFSZ == status


def test_the_workspace_begins_with_what_the_image_has_there(tmp_path, docker):
    """What the task brings is not overwritten, and what an agent removed does not come back."""
    place = {"workdir": "/app"}
    (tmp_path / "workspace").mkdir()
    (tmp_path / "workspace" / "both.txt").write_text("from the task\n")
    _, output = ran(tmp_path, docker, "pwd; cat given.txt both.txt; rm given.txt", place=place)
    _, later = ran(tmp_path, docker, "ls", place=place | {"fills": False})

    assert "/app\nfrom the image\nfrom the task\n" == output
    assert "both.txt\n" == later
    assert [tmp_path / "workspace" / "both.txt"] == list((tmp_path / "workspace").iterdir())


def test_what_is_written_beside_the_workspace_is_not_kept(tmp_path, docker):
    ran(tmp_path, docker, "echo > /root/x; echo > /tmp/x; echo > kept; echo > $HOME/kept")
    status, _ = ran(tmp_path, docker, "[ ! -e /root/x ] && [ ! -e /tmp/x ] && [ -e $HOME/kept ]")

    assert 0 == status
    assert (tmp_path / "workspace" / "kept").exists()


def test_folders_of_the_host_are_read_and_written_as_told(tmp_path, docker):
    for name in ("layer", "results"):
        (tmp_path / name).mkdir()
    (tmp_path / "layer" / "tool").write_text("sharp")
    place = {"readable": (tmp_path / "layer", tmp_path / "missing")}
    place |= {"writable": {"/logs": tmp_path / "results", "/none": tmp_path / "none"}}
    script = f"cat {tmp_path}/layer/tool > /logs/said; echo > {tmp_path}/layer/x"
    _, output = ran(tmp_path, docker, script, place=place)

    assert "sharp" == (tmp_path / "results" / "said").read_text()
    assert "Read-only file system" in output


def test_an_image_is_built_once_from_its_folder(tmp_path, docker):
    built = tmp_path / "environment"
    built.mkdir()
    (built / "Dockerfile").write_text(
        f"FROM {IMAGE}\nENV MADE=here\nWORKDIR /work\nCOPY note.txt .\n"
    )
    (built / "note.txt").write_text("built in\n")
    place = {"image": None, "build": built}
    _, output = ran(tmp_path / "one", docker, "pwd; cat note.txt; echo $MADE", place=place)
    before = len(json.loads(Daemon(docker).ask_now("GET", "/images/json")))
    ran(tmp_path / "two", docker, ":", place=place)

    assert "/work\nbuilt in\nhere\n" == output
    assert before == len(json.loads(Daemon(docker).ask_now("GET", "/images/json")))


@pytest.mark.parametrize(
    ("text", "said"),
    [(f"FROM {IMAGE}\nCOPY nothing.txt .\n", "nothing.txt"), (None, "expected a Dockerfile")],
)
def test_an_image_that_cannot_be_built_is_an_error(text, said, tmp_path, docker):
    if text is not None:
        (tmp_path / "Dockerfile").write_text(text)

    with pytest.raises(SandboxError, match=said) as caught:
        ran(tmp_path / "one", docker, ":", place={"image": None, "build": tmp_path})
    assert not caught.value.retryable


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ({"image": "no/such:image"}, "image no/such:image: expected it at"),
        ({"image": None}, "expected an image, of the task or in the run file"),
        ({"runtime": "no-such-runtime"}, "no-such-runtime"),
    ],
)
def test_what_a_daemon_has_not_is_an_error_for_good(place, said, tmp_path, docker):
    with pytest.raises(SandboxError, match=said) as caught:
        ran(tmp_path, docker, ":", place=place)
    assert not caught.value.retryable


def test_a_program_that_takes_too_long_to_begin_is_an_error_that_may_pass(
    tmp_path, docker, monkeypatch
):
    monkeypatch.setattr(program, "BEGIN_S", 0.0)

    with pytest.raises(SandboxError, match="did not begin within 0 s") as caught:
        ran(tmp_path, docker, ":")
    assert caught.value.retryable


def test_a_daemon_that_is_not_there_is_an_error_that_names_its_socket(tmp_path):
    inside = Inside(tmp_path, str(tmp_path / "none.sock"))
    asyncio.run(inside.sandbox.kill())

    with pytest.raises(SandboxError, match=r"expected a daemon at .*none.sock: FileNotFoundError"):
        asyncio.run(inside.run(":"))
    with pytest.raises(SandboxError, match=r"none\.sock"):
        asyncio.run(inside.sandbox.freeze())


def test_programs_whose_daemon_dies_are_ended(tmp_path):
    """Its containers go on without it, until they are ended."""

    async def lose(folder):
        with running(folder) as socket:
            inside = Inside(tmp_path / "one", socket)
            await inside.start(ESCAPE + "; sleep 600")
            await wait_for(inside.workspace / "escaped")
            init = inside.sandbox.init
            daemon = int((folder / "pid").read_text())
            shim = int(Path(f"/proc/{init}/stat").read_text().rpartition(")")[2].split()[1])
            os.kill(daemon, signal.SIGKILL)
            with pytest.raises(SandboxError):
                await inside.sandbox.wait()
            was_alive = is_alive(init)
            await inside.sandbox.kill()
        for pid in (shim, int((folder / "exec/containerd/containerd.pid").read_text())):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return was_alive, is_alive(init)

    with place() as folder:
        alive = asyncio.run(lose(folder))

    assert (True, False) == alive


def test_a_container_that_somebody_else_removes_is_an_error(tmp_path, docker):
    async def lose():
        inside = Inside(tmp_path, docker)
        await inside.start("echo > ready; exec sleep 600")
        await wait_for(inside.workspace / "ready")
        identity = containers(docker, label=[f"{LABEL}={inside.mark}"])[0]["Id"]
        Daemon(docker).ask_now("DELETE", f"/containers/{identity}", query={"force": 1})
        try:
            await inside.sandbox.wait()
        finally:
            await inside.sandbox.kill()

    with pytest.raises(SandboxError, match="its container is gone"):
        asyncio.run(lose())


LEFT = """
import asyncio, os, sys
from pathlib import Path
from tests.sandboxes.docker.test_docker import Inside
from tests.contracts.sandbox import wait_for

async def leave():
    inside = Inside(Path(sys.argv[1]), sys.argv[2])
    await inside.start("echo > ready; exec sleep 600")
    await wait_for(inside.workspace / "ready")
    print(inside.mark, inside.sandbox.init, flush=True)
    os._exit(0)

asyncio.run(leave())
"""


def test_a_container_dies_with_its_supervisor(tmp_path, docker):
    done = subprocess.run(
        [sys.executable, "-c", LEFT, str(tmp_path), docker],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
    )
    mark, init = done.stdout.split()
    wait_until(lambda: not is_alive(int(init)), "the end of its first process")
    wait_until(lambda: not containers(docker, label=[f"{LABEL}={mark}"]), "its removal")


def test_what_was_left_over_is_removed_before_anything_starts(tmp_path, docker):
    inside, stranger = Inside(tmp_path, docker), secrets.token_hex(16)
    for mark in (inside.mark, stranger):
        body = {"Image": IMAGE, "Entrypoint": ["sleep", "600"], "Labels": {LABEL: mark}}
        body |= {"HostConfig": {"NetworkMode": "none"}}
        made = json.loads(Daemon(docker).ask_now("POST", "/containers/create", body))
        Daemon(docker).ask_now("POST", f"/containers/{made['Id']}/start")
    asyncio.run(inside.sandbox.kill())
    left = [containers(docker, label=[f"{LABEL}={mark}"]) for mark in (inside.mark, stranger)]
    Daemon(docker).ask_now("DELETE", f"/containers/{made['Id']}", query={"force": 1})

    assert [0, 1] == [len(found) for found in left]


def test_nothing_is_left_at_the_daemon(tmp_path, docker):
    inside = Inside(tmp_path, docker, place={"workdir": "/app"})
    asyncio.run(inside.run(ESCAPE))

    assert [] == containers(docker, label=[f"{LABEL}={inside.mark}"])


def test_giving_up_on_a_start_leaves_nothing(tmp_path, docker):
    """As an evaluation does whose time is over."""
    inside = Inside(tmp_path, docker)

    async def give_up():
        await inside.sandbox.prepare(str(inside.workspace))
        starting = asyncio.create_task(inside.start("sleep 600"))
        await until(lambda: containers(docker, label=[f"{LABEL}={inside.mark}"]), "a container")
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        await inside.sandbox.kill()

    asyncio.run(give_up())

    assert [] == containers(docker, label=[f"{LABEL}={inside.mark}"])
