"""A whole execution in containers: agent and assessment each in one of their own."""

from dataclasses import replace

from tests.controller.support.supervised import evaluation, order, supervised
from tests.sandboxes.support.daemon import IMAGE

from gyre.types.outcomes import Ending, Outcome
from gyre.types.tasks import Limits, ResourceNeeds, SandboxSpec

SCORE = '[ -e /root/left ] || echo "0.$(wc -l < work)" > $GYRE_RESULTS/reward.txt'
"""What the agent left outside of its workspace must not be there."""
LIMITS = Limits(memory_bytes=2**28, processes=64, cpus=1.0, disk_bytes=2**28)


def place(socket, image=IMAGE):
    return SandboxSpec(kind="docker", image=image, socket=socket, limits=LIMITS)


def test_what_an_agent_leaves_in_its_workspace_is_scored(tmp_path, docker):
    wanted = order(
        "echo 1 > work; echo 2 >> work; echo > /root/left",
        judge=evaluation(SCORE),
        sandbox=place(docker),
    )
    with supervised(tmp_path / "e1", wanted) as one:
        record = one.end()

    assert (Ending.COMPLETED, Outcome.VALID) == (record.terminated.ending, record.closed.outcome)
    assert 0.2 == record.closed.score


def test_an_agent_that_runs_out_of_time_keeps_its_part(tmp_path, docker):
    wanted = order(
        "echo 1 > work; sleep 600; echo 2 >> work",
        judge=evaluation(SCORE),
        sandbox=place(docker),
    )
    with supervised(tmp_path / "e1", wanted) as one:
        one.wait_for_work()
        one.pass_time()
        record = one.end()

    assert (Ending.TIMED_OUT, Outcome.VALID) == (record.terminated.ending, record.closed.outcome)
    assert 0.1 == record.closed.score


def test_without_its_image_an_execution_never_starts(tmp_path, docker):
    wanted = order("echo 1 > work", sandbox=place(docker, "no-such:image"))
    with supervised(tmp_path / "e1", wanted) as one:
        record = one.end()

    assert Ending.NEVER_STARTED == record.terminated.ending
    assert "no-such:image" in record.terminated.reason


def test_what_a_killed_supervisor_left_is_ended_and_scored(tmp_path, docker):
    wanted = order("echo 1 > work; sleep 600", judge=evaluation(SCORE), sandbox=place(docker))
    with supervised(tmp_path / "e1", wanted) as one:
        one.wait_for_work()
        one.kill_and_resume()
        record = one.end()

    assert (Ending.CRASHED, Outcome.VALID) == (record.terminated.ending, record.closed.outcome)
    assert 0.1 == record.closed.score


def test_a_task_finds_all_that_it_names(tmp_path, docker):
    """Its image, built from its folder; its workspace, tests and results; less memory."""
    for name, text in {
        "image/Dockerfile": f"FROM {IMAGE}\nWORKDIR /app\nCOPY made.txt made.txt\n",
        "image/made.txt": "built\n",
        "files/given.txt": "from the task\n",
        "tests/test.sh": "cat /tests/wanted | cmp - work && echo 1 > /logs/verifier/reward.txt",
        "tests/wanted": f"/app\nbuilt\nfrom the task\n{2**26}\n",
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    limit = "cat /sys/fs/cgroup/memory/memory.limit_in_bytes || cat /sys/fs/cgroup/memory.max"
    wanted = order(
        f"(pwd; cat made.txt given.txt; {limit}) > work 2> said; ls /tests && exit 9; exit 0",
        judge=evaluation(
            "sh /tests/test.sh",
            files=str(tmp_path / "tests"),
            files_at="/tests",
            results_at="/logs/verifier",
        ),
        files=str(tmp_path / "files"),
        sandbox=place(docker, image=None),
    )
    needs = ResourceNeeds(build=str(tmp_path / "image"), workdir="/app", memory_mb=64)
    with supervised(
        tmp_path / "e1", replace(wanted, task=replace(wanted.task, needs=needs))
    ) as one:
        record = one.end()

    work = (tmp_path / "e1" / "frozen" / "work").read_text()
    assert (Ending.COMPLETED, Outcome.VALID) == (record.terminated.ending, record.closed.outcome)
    assert (1.0, (tmp_path / "tests" / "wanted").read_text()) == (record.closed.score, work)
