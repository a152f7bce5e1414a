"""Whole executions under supervisors in local sandboxes, from their files to their scores."""

import signal
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from tests.contracts.sandbox import ESCAPE
from tests.controller.support.supervised import evaluation, order, supervised
from tests.sandboxes.local.test_escapes import answering
from tests.waiting import wait_until

from gyre.rollout.environment import address_of, check, limits_for
from gyre.types.errors import ConfigError
from gyre.types.outcomes import Ending, Outcome, Prepared
from gyre.types.tasks import Limits, ResourceNeeds, SandboxSpec

pytestmark = pytest.mark.slow
LOCAL = SandboxSpec(kind="local", limits=Limits(memory_bytes=2**28, processes=64, disk_bytes=2**26))


def local(harness, **changed):
    return order(harness, **({"sandbox": LOCAL} | changed))


def test_what_an_agent_leaves_in_a_sandbox_is_scored(tmp_path):
    script = "echo a > work; echo b >> work; echo $PWD $HOME"
    with supervised(tmp_path / "e", local(script)) as one:
        record = one.end()

    assert (Outcome.VALID, 0.2) == (record.closed.outcome, record.closed.score)
    assert "/workspace /home/agent\n" == (tmp_path / "e" / "output.txt").read_text()
    (prepared,) = [fact for fact in one.facts if isinstance(fact, Prepared)]
    assert {"files", "network", "processes", "memory", "pids", "disk"} <= set(prepared.levels)


def test_each_assessment_finds_the_state_as_it_was_left(tmp_path):
    """The first changes all it can, and says nothing; the second sees none of that."""
    judge = evaluation(
        """
        echo here > /tmp/mine; cat deep/kept >> ../tmp/mine
        [ "$(cat deep/kept)" = first ] && [ ! -e new ] && [ ! -e /home/agent/left ] || exit 7
        echo spoiled > deep/kept; rm work; touch new deep/new
        [ -e "$GYRE_EVALUATION/tried" ] && exit 8
        echo $(cat /proc/uptime | cut -d' ' -f1) > $GYRE_RESULTS/other
        """,
        attempts=2,
    )
    script = "mkdir deep; echo first > deep/kept; chmod 500 deep; echo x > work; touch ~/left"
    with supervised(tmp_path / "e", local(script, judge=judge)) as one:
        record = one.end()

    assert [None, None] == [made.score for made in record.assessments]
    assert 1 == len({made.reference for made in record.assessments})
    assert {"reward.txt is missing or empty"} == {made.reason for made in record.assessments}
    assert "first\n" == (tmp_path / "e" / "frozen" / "deep" / "kept").read_text()
    assert (tmp_path / "e" / "frozen" / "work").exists()


def test_an_agent_that_went_over_its_time_is_ended_and_scored(tmp_path):
    script = f"{ESCAPE}; until test -s escaped; do :; done; echo a > work; sleep 600"
    with supervised(tmp_path / "e", local(script)) as one:
        one.wait_for_work()
        one.pass_time()
        record = one.end()

    assert (Ending.TIMED_OUT, 0.1) == (record.terminated.ending, record.closed.score)


def test_an_agent_over_its_limits_is_ended_and_scored(tmp_path):
    script = "echo a > work; i=0; while :; do head -c 9000000 /dev/zero > $i; i=$((i+1)); done"
    with supervised(tmp_path / "e", local(script)) as one:
        record = one.end()

    assert (Ending.CRASHED, 0.1) == (record.terminated.ending, record.closed.score)
    assert "bytes on disk" in record.terminated.reason


def test_the_proxy_is_reached_wherever_it_is_now(tmp_path):
    """The file names another address than the order did when it was written."""
    ask = "import os,urllib.request as u;print(u.urlopen(os.environ['OPENAI_BASE_URL']).read())"
    answer = b"HTTP/1.0 200 OK\r\n\r\nhello from the proxy"
    with answering("127.0.0.1", answer) as port:
        (tmp_path / "proxy.url").write_text(f"http://127.0.0.1:{port}\n")
        wanted = local(
            f'/usr/bin/python3 -c "{ask}" > work', address_file=str(tmp_path / "proxy.url")
        )
        with supervised(tmp_path / "e", wanted) as one:
            one.end()

    assert "hello from the proxy" in (tmp_path / "e" / "frozen" / "work").read_text()


@pytest.mark.parametrize("kind", ["process", "local"])
def test_a_proxy_that_comes_back_elsewhere_is_waited_for(kind, tmp_path):
    """A connection that is made while it is away is held until it has an address again."""
    ask = "import os,urllib.request as u;print(u.urlopen(os.environ['OPENAI_BASE_URL']).read())"
    # The port is held and not listened on: whoever connects is refused, and nobody else gets it.
    gone = socket.socket()
    gone.bind(("127.0.0.1", 0))
    url = tmp_path / "proxy.url"
    url.write_text(f"http://127.0.0.1:{gone.getsockname()[1]}\n")
    script = f'touch begun; /usr/bin/python3 -c "{ask}" > work'
    wanted = order(script, sandbox=SandboxSpec(kind=kind), address_file=str(url))
    with gone, supervised(tmp_path / "e", wanted) as one:
        wait_until((tmp_path / "e" / "workspace" / "begun").exists)
        with answering("127.0.0.1", b"HTTP/1.0 200 OK\r\n\r\nback again") as port:
            url.write_text(f"http://127.0.0.1:{port}\n")
            record = one.end()

    assert Ending.COMPLETED == record.terminated.ending
    assert "back again" in (tmp_path / "e" / "frozen" / "work").read_text()


def test_files_among_the_arguments_are_seen(tmp_path):
    """And nothing beside them."""
    agent = tmp_path / "agent.sh"
    agent.write_text(f"echo a > work; ls {tmp_path} >> work")
    with supervised(tmp_path / "e", local(("sh", str(agent)))) as one:
        one.end()

    assert "a\nagent.sh\n" == (tmp_path / "e" / "frozen" / "work").read_text()


def test_a_task_may_name_less_than_the_run_allows():
    allowed = Limits(memory_bytes=2**30, processes=9, cpus=None, disk_bytes=2**30)

    def found(**needs):
        wanted = order("true", sandbox=SandboxSpec(limits=allowed))
        return limits_for(replace(wanted, task=replace(wanted.task, needs=ResourceNeeds(**needs))))

    assert allowed == found()
    assert replace(allowed, memory_bytes=2**20) == found(memory_mb=1)
    assert replace(allowed, cpus=0.5) == found(cpus=0.5, memory_mb=4096, storage_mb=4096)
    assert replace(allowed, disk_bytes=2**21) == found(storage_mb=2)


def test_an_address_that_cannot_be_read_is_no_address(tmp_path):
    (tmp_path / "proxy.url").write_text("http://[")
    wanted = local("true", address_file=str(tmp_path / "proxy.url"))

    with pytest.raises(OSError, match="IPv6"):
        address_of(wanted)()
    assert ("127.0.0.1", 9) == address_of(local("true", address_file="/no/such/file"))()


def test_programs_die_with_their_supervisor(tmp_path):
    """And the execution goes on as one that crashed."""
    with supervised(tmp_path / "e", local("echo a > work; exec sleep 600")) as one:
        one.wait_for_work()
        (mark,) = [fact.mark for fact in one.facts if isinstance(fact, Prepared)]
        one.kill_and_resume()
        record = one.end()

    assert (Ending.CRASHED, 0.1) == (record.terminated.ending, record.closed.score)
    wait_until(lambda: not bearing(mark))


def bearing(mark):
    """Processes with the mark in their environment."""
    found = []
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdigit() and mark in (folder / "environ").read_text(errors="replace"):
                found.append(folder.name)
        except OSError:
            continue
    return found


def test_a_level_that_is_not_there_is_never_done_without(tmp_path):
    with supervised(
        tmp_path / "e", order("echo a > work", sandbox=SandboxSpec(require=("network",)))
    ) as one:
        record = one.end()

    assert Ending.NEVER_STARTED == record.terminated.ending
    assert record.terminated.reason.startswith("sandbox.require: network: not in force")


def test_a_machine_is_asked_before_a_run_begins(tmp_path):
    check(SandboxSpec())
    check(replace(LOCAL, require=("network", "files", "seccomp", "memory")))

    with pytest.raises(ConfigError, match=r"sandbox.require: network: not in force here"):
        check(SandboxSpec(require=("network",)))
    with pytest.raises(ConfigError, match=r"sandbox.kind: local: .* sandbox.root: expected"):
        check(SandboxSpec(kind="local", root=str(tmp_path / "nothing")))
    with pytest.raises(ConfigError, match=r'sandbox.kind: local: .* execvp sh.* = "process"'):
        check(SandboxSpec(kind="local", root=str(tmp_path)))


def test_a_machine_without_user_namespaces_is_refused_with_what_to_set():
    """In a namespace that may have none below it."""
    code = (
        "from gyre.rollout.environment import check; from gyre.types.tasks import SandboxSpec\n"
        "from gyre.types.errors import ConfigError\n"
        "try: check(SandboxSpec(kind='local'))\n"
        "except ConfigError as error: print(error)"
    )
    script = 'echo 0 > /proc/sys/user/max_user_namespaces; exec "$0" -c "$1"'
    done = subprocess.run(
        ["unshare", "--user", "--map-root-user", "sh", "-c", script, sys.executable, code],
        capture_output=True,
        text=True,
        check=True,
    )

    assert done.stdout.startswith("sandbox.kind: local: cannot be had on this machine: ")
    assert "namespace" in done.stdout
    assert done.stdout.endswith('there is sandbox.kind = "process"\n')


@pytest.mark.parametrize(
    ("keep", "score", "is_kept"),
    [
        ("all", "1", True),
        ("scored", "1", True),
        ("scored", "nothing", False),
        ("unscored", "1", False),
        ("unscored", "nothing", True),
        ("none", "1", False),
    ],
)
def test_the_disk_holds_what_is_to_be_kept(keep, score, is_kept, tmp_path):
    judge = evaluation(f"echo {score} > $GYRE_RESULTS/reward.txt", attempts=1)
    wanted = local("echo a > work", judge=judge, sandbox=SandboxSpec(kind="local", keep=keep))
    with supervised(tmp_path / "e", wanted) as one:
        one.end()
    left = {path.name for path in (tmp_path / "e").iterdir()}

    assert is_kept == ("frozen" in left)
    assert not {"place", "scratch", "workspace"} & left
    assert {"facts.jsonl", "outcome.json", "output.txt"} <= left


def test_a_root_of_its_own_keeps_what_was_written_to_it(tmp_path):
    """Below the workspace lies what the root has there; what is removed of it stays away."""
    root = tmp_path / "root"
    for name in ("usr", "app", "etc"):
        (root / name).mkdir(parents=True)
    for name in ("bin", "lib", "lib64", "sbin"):
        (root / name).symlink_to(f"usr/{name}")
    (root / "app" / "given").write_text("given")
    (root / "app" / "stays").write_text("stays")
    judge = evaluation('echo "$(cat /etc/made own stays) $(ls)" > $GYRE_RESULTS/reward.txt')
    wanted = local(
        "printf made > /etc/made; cat given > own; rm given",
        judge=judge,
        sandbox=SandboxSpec(kind="local", root=str(root), readable=("/usr",)),
    )
    task = replace(wanted.task, needs=ResourceNeeds(workdir="/app"))
    with supervised(tmp_path / "e", replace(wanted, task=task)) as one:
        record = one.end()

    assert "found 'madegivenstays own\\nstays'" in record.assessments[0].reason
    assert ["given", "stays"] == sorted(path.name for path in (root / "app").iterdir())
    assert not (root / "etc" / "made").exists()
    assert "made" == (tmp_path / "e" / "frozen-root" / "etc" / "made").read_text()


def test_a_surplus_execution_ends_at_once(tmp_path):
    with supervised(tmp_path / "e", local("echo a > work; sleep 600")) as one:
        one.wait_for_work()
        one.signal(signal.SIGUSR1)
        record = one.end()

    assert Outcome.SURPLUS == record.closed.outcome
