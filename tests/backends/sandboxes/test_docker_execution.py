"""A whole execution in containers: agent and assessment each in one of their own."""

from tests.backends.sandboxes.daemon import IMAGE
from tests.run.supervised import evaluation, order, supervised

from gyre.words.outcomes import Ending, Outcome
from gyre.words.sandboxes import Limits, SandboxOrder

SCORE = '[ -e /root/left ] || echo "0.$(wc -l < work)" > $GYRE_RESULTS/reward.txt'
"""What the agent left outside of its workspace must not be there."""
LIMITS = Limits(memory_bytes=2**28, processes=64, cpus=1.0, disk_bytes=2**28)


def place(socket, image=IMAGE):
    return SandboxOrder(kind="docker", image=image, socket=socket, limits=LIMITS)


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
        agent_s=3.0,
    )
    with supervised(tmp_path / "e1", wanted) as one:
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
