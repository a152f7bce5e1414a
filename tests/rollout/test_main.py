"""Supervisors as processes: what they give, keep and end, their deaths, and orders to them."""

import asyncio
import re
import resource
import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from tests.controller.support.supervised import (
    COUNT_LINES,
    Supervised,
    evaluation,
    is_alive,
    order,
    resume,
    start,
    supervised,
)
from tests.waiting import PATIENCE_S, wait_until

from gyre.rollout import facts as outcome
from gyre.rollout.facts import FactsFile
from gyre.rollout.heartbeat import BEAT_FILE, BEAT_S, Heartbeat, last_spent_s
from gyre.rollout.main import AllHeldCalls, Secrets, SupervisorProcess
from gyre.rollout.spec import ProxyTotals, write_order, write_proxy_totals
from gyre.rollout.workspace import content_hash
from gyre.sandboxes.proxy_relay import Upstream
from gyre.storage.files import is_taken
from gyre.types.outcomes import Assessed, Ending, Launched, Outcome, Prepared, Status, Terminated

pytestmark = pytest.mark.slow

HALF = "echo one > work; "

UNRESOLVED, FAILED, VALID = Status.UNRESOLVED, Status.FAILED, Status.VALID
GARBAGE = evaluation("echo great > $GYRE_RESULTS/reward.txt")

ESCAPES = {
    "marked": "(setsid sh -c 'echo $$ > escaped; exec sleep 600' &)",
    "without its environment": "(setsid sh -c 'echo $$ > escaped; exec env -i sleep 600' &)",
}


@pytest.mark.parametrize("escape", ESCAPES)
@pytest.mark.parametrize("goes_on", [True, False])
def test_nothing_outlives_the_harness(escape, goes_on, tmp_path):
    """FAULTS 13: neither at its deadline nor when it ends by itself."""
    harness = ESCAPES[escape] + "; until test -s escaped; do :; done; echo one > work"
    with supervised(tmp_path, order(harness + ("; sleep 600" * goes_on))) as one:
        if goes_on:
            one.wait_for_work()
            one.pass_time()
        one.wait_for_fact(Terminated)
        escaped = int((tmp_path / "frozen" / "escaped").read_text())
        was_alive = is_alive(escaped)
        record = one.end()

    assert not was_alive
    assert (Ending.TIMED_OUT if goes_on else Ending.COMPLETED) is record.terminated.ending


def test_the_agent_sees_only_what_it_is_given(tmp_path, monkeypatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "not for agents")
    wanted = order("env > work", variables={"LEVEL": "3", "ANTHROPIC_BASE_URL": "http://evil"})
    with supervised(tmp_path, wanted) as one:
        one.end()
    seen = dict(
        line.split("=", 1) for line in (tmp_path / "frozen" / "work").read_text().splitlines()
    )

    assert "AWS_SECRET_ACCESS_KEY" not in seen
    assert "3" == seen["LEVEL"]
    url = seen["ANTHROPIC_BASE_URL"]
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/exec/e1", url)
    assert f"{url}/v1" == seen["OPENAI_BASE_URL"]
    assert "gyre-secret" == seen["ANTHROPIC_AUTH_TOKEN"] == seen["OPENAI_API_KEY"]
    assert str(tmp_path / "home") == seen["HOME"]


def test_the_key_is_in_no_file_that_gyre_writes(tmp_path):
    """SPEC 4.7."""
    with supervised(tmp_path, order(HALF)) as one:
        one.end()

    assert [] == [
        path
        for path in tmp_path.rglob("*")
        if path.is_file() and b"gyre-secret" in path.read_bytes()
    ]


def test_output_is_kept_within_bounds(tmp_path):
    wanted = order("echo begin; head -c 1000000 /dev/zero; echo end", output_bytes=1000)
    with supervised(tmp_path, wanted) as one:
        one.end()
    kept = (tmp_path / "output.txt").read_bytes()

    assert len(kept) < 1100
    assert kept.startswith(b"begin\n")
    assert kept.endswith(b"end\n")
    assert b"bytes left out" in kept


def test_a_supervisor_outlives_its_parent_and_another_reader_sees_the_outcome(tmp_path):
    parent = """
import os, signal, sys
from pathlib import Path
from tests.controller.support.supervised import order, start
from gyre.rollout.main import Secrets
start(Path(sys.argv[1]), order("echo one > work; until test -e go; do :; done"), Secrets(key="k"))
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", parent, str(tmp_path)], check=False)
    wait_until(lambda: (tmp_path / "workspace" / "work").exists())
    was_supervised = is_taken(tmp_path)
    before = outcome.read_outcome(tmp_path)
    (tmp_path / "workspace" / "go").touch()
    wait_until(lambda: not is_taken(tmp_path))

    assert -signal.SIGKILL == done.returncode
    assert (True, None) == (was_supervised, before)
    assert (Outcome.VALID, 0.1) == (
        outcome.read_outcome(tmp_path).closed.outcome,
        outcome.read_outcome(tmp_path).closed.score,
    )


def test_a_killed_supervisor_is_followed_by_one_that_assesses_what_is_there(tmp_path):
    """SPEC 10: the harness is ended and not launched again."""
    starts = tmp_path / "starts"
    wanted = order(f"echo $$ >> {starts}; {HALF} sleep 600")
    with supervised(tmp_path / "e1", wanted) as one:
        one.wait_for_work()
        one.kill_and_resume()
        record = one.end()
    (pid,) = starts.read_text().split()

    assert not is_alive(int(pid))
    assert 1 == sum(isinstance(fact, Launched) for fact in one.facts)
    assert (Ending.CRASHED, 0.1) == (record.terminated.ending, record.closed.score)


def test_an_execution_whose_folder_was_moved_is_assessed_where_it_is(tmp_path):
    with supervised(tmp_path / "run" / "e1", order(HALF, judge=evaluation("sleep 600"))) as one:
        one.wait_for_fact(Terminated)
        one.process.kill()
        one.process.wait(PATIENCE_S)
        (tmp_path / "run").rename(tmp_path / "moved")
        one.folder = tmp_path / "moved" / "e1"
        write_order(one.folder, order(HALF))
        one.process = resume(one.folder, Secrets())
        record = one.end()

    assert (Ending.COMPLETED, 0.1) == (record.terminated.ending, record.closed.score)


def test_a_supervisor_killed_while_it_evaluates_keeps_the_attempts_made(tmp_path):
    """And what the attempt left running is gone before the next one begins."""
    judge = evaluation(
        "test -e $SEEN || { touch $SEEN; exit 7; }; "
        "test -e $SEEN.2 || { echo $$ > $SEEN.2; exec sleep 600; }; "
        f"grep -q sleep /proc/$(cat $SEEN.2)/cmdline || {COUNT_LINES}"
    )
    seen = tmp_path / "seen"
    with supervised(
        tmp_path / "e1", order(HALF, judge=judge, variables={"SEEN": str(seen)})
    ) as one:
        wait_until(lambda: seen.with_suffix(".2").exists() and seen.with_suffix(".2").read_text())
        one.kill_and_resume()
        record = one.end()

    assert [(FAILED, 1), (VALID, 2)] == [(made.status, made.attempt) for made in record.assessments]
    assert 0.1 == record.closed.score


def test_after_the_machine_has_started_again_its_old_clock_means_nothing(tmp_path):
    """SPEC 6.1: the budget of the evaluation begins anew instead of being over or endless.

    What was spent of it was not on the disk yet.
    """
    with supervised(tmp_path, order(HALF + "sleep 600")) as one:
        one.wait_for_work()
        one.process.kill()
        one.process.wait(PATIENCE_S)
        (tmp_path / BEAT_FILE).write_bytes(b"")
        path = tmp_path / "facts.jsonl"
        (launched,) = [fact for fact in one.facts if isinstance(fact, Launched)]
        text = path.read_text().replace(launched.boot, "another boot")
        path.write_text(text.replace(str(launched.monotonic_s), "-1e9"))
        one.kill_and_resume()
        record = one.end()

    assert (None, 0.1) == (record.terminated.elapsed_s, record.closed.score)


def test_a_closed_execution_stays_as_it_is_when_it_is_supervised_again(tmp_path):
    with supervised(tmp_path, order(HALF)) as one:
        record = one.end()
        facts = one.facts
        (tmp_path / outcome.OUTCOME_FILE).unlink()
        one.process = resume(tmp_path, Secrets())

        assert (record, facts) == (one.end(), one.facts)


def test_an_execution_has_one_supervisor(tmp_path):
    with supervised(tmp_path, order(HALF + "sleep 600")) as one:
        one.wait_for_work()
        by_hand = [sys.executable, "-m", "gyre.rollout.main", str(tmp_path / "order.json")]
        second = subprocess.run(by_hand, stdin=subprocess.DEVNULL, capture_output=True, check=False)

        assert (2, True) == (second.returncode, b"has a supervisor already" in second.stderr)
        assert is_taken(tmp_path)
        assert 0 == len(list(tmp_path.glob("frozen")))


def test_a_surplus_execution_is_not_assessed(tmp_path):
    """SPEC 6.5."""
    with supervised(tmp_path, order(HALF + "sleep 600")) as one:
        one.wait_for_work()
        one.signal(signal.SIGUSR1)
        record = one.end()

    assert (Ending.CANCELLED, Outcome.SURPLUS) == (
        record.terminated.ending,
        record.closed.outcome,
    )
    assert ((), None) == (record.assessments, record.closed.score)


def test_an_execution_that_becomes_surplus_is_assessed_no_further(tmp_path):
    judge = evaluation("touch $SEEN; sleep 600")
    seen = tmp_path / "seen"
    with supervised(
        tmp_path / "e1", order(HALF, judge=judge, variables={"SEEN": str(seen)})
    ) as one:
        wait_until(seen.exists)
        one.signal(signal.SIGUSR1)
        record = one.end()

    assert (Ending.COMPLETED, Outcome.SURPLUS) == (
        record.terminated.ending,
        record.closed.outcome,
    )


def test_what_has_ended_when_its_run_is_stopped_is_assessed_when_that_is_resumed(tmp_path):
    """SPEC 10: Ctrl-C costs no execution that was completed."""
    seen = tmp_path / "seen"
    judge = evaluation(f"touch $SEEN; until test -e $SEEN.go; do sleep 0.01; done; {COUNT_LINES}")
    with supervised(
        tmp_path / "e1", order(HALF, judge=judge, variables={"SEEN": str(seen)})
    ) as one:
        wait_until(seen.exists)
        one.signal(signal.SIGUSR2)
        stopped = one.end()
        seen.with_suffix(".go").touch()
        one.process = resume(one.folder, Secrets())
        record = one.end()

    assert (Ending.COMPLETED, None) == (stopped.terminated.ending, stopped.closed)
    assert (Ending.COMPLETED, 0.1) == (record.terminated.ending, record.closed.score)


@pytest.mark.parametrize("number", [signal.SIGUSR2, signal.SIGKILL])
@pytest.mark.parametrize("starts_again", [False, True])
def test_time_in_which_its_run_is_stopped_is_not_charged(number, starts_again, tmp_path):
    """SPEC 6.1, 10: also where its supervisor was killed, and on another start of the machine."""
    seen = tmp_path / "seen"
    judge = evaluation(f"touch $SEEN; until test -e $SEEN.go; do sleep 0.01; done; {COUNT_LINES}")
    with supervised(
        tmp_path / "e1", order(HALF, judge=judge, variables={"SEEN": str(seen)})
    ) as one:
        wait_until(seen.exists)
        one.signal(number)
        one.process.wait(PATIENCE_S)
        (launched,) = [fact for fact in one.facts if isinstance(fact, Launched)]
        path = one.folder / "facts.jsonl"
        # As if it had been launched long ago.
        text = path.read_text().replace(f"{launched.monotonic_s}", f"{launched.monotonic_s - 1e6}")
        path.write_text(text.replace(launched.boot, "before") if starts_again else text)
        seen.with_suffix(".go").touch()
        one.process = resume(one.folder, Secrets())
        record = one.end()

    assert (Ending.COMPLETED, 0.1) == (record.terminated.ending, record.closed.score)


def test_an_execution_whose_supervisors_are_killed_again_and_again_comes_to_an_end(tmp_path):
    """SPEC 6.1: its judge never answers, and every life is charged."""
    num_lives = 3
    judge = evaluation("sleep 600", attempts=1000, attempt_s=600.0)
    wanted = order(HALF, judge=judge, agent_s=1.0, overall_s=num_lives * BEAT_S)
    spent = []
    with supervised(tmp_path, wanted) as one:
        one.wait_for_fact(Terminated)
        for _ in range(num_lives):
            if one.process.poll() is None:
                one.kill_and_resume()
            spent.append(last_spent_s(tmp_path))
            wait_until(lambda: last_spent_s(tmp_path) != spent[-1] or one.process.poll() == 0)
        record = one.end()

    assert spent == sorted(spent)
    assert (Outcome.EXCLUDED, None) == (record.closed.outcome, record.closed.score)


def test_what_runs_when_its_run_is_stopped_is_cancelled_and_not_closed(tmp_path):
    with supervised(tmp_path, order(HALF + "sleep 600")) as one:
        one.wait_for_work()
        one.signal(signal.SIGUSR2)
        record = one.end()

    assert (Ending.CANCELLED, None) == (record.terminated.ending, record.closed)
    assert () == record.assessments


def test_cancelling_what_has_ended_already_changes_nothing(tmp_path):
    """SPEC 1.2: f has moved."""
    seen = tmp_path / "seen"
    judge = evaluation(f"touch $SEEN; until test -e $SEEN.go; do :; done; {COUNT_LINES}")
    with supervised(
        tmp_path / "e1", order(HALF, judge=judge, variables={"SEEN": str(seen)})
    ) as one:
        wait_until(seen.exists)
        one.signal(signal.SIGTERM)
        seen.with_suffix(".go").touch()
        record = one.end()

    assert (Ending.COMPLETED, 0.1) == (record.terminated.ending, record.closed.score)


def test_a_signal_that_comes_before_the_supervisor_is_ready_is_not_lost(tmp_path):
    """SPEC 1.2: what is cancelled before launch is never launched."""
    with supervised(tmp_path, order(HALF + "sleep 600")) as one:
        one.signal(signal.SIGTERM)
        record = one.end()

    assert Ending.CANCELLED is record.terminated.ending
    if not record.was_launched:
        assert Outcome.EXCLUDED is record.closed.outcome


def test_time_without_an_engine_is_not_charged(tmp_path):
    """SPEC 6.1: told in time, the deadline moves on."""
    with supervised(
        tmp_path, order(HALF + "until test -e go; do :; done; echo two >> work")
    ) as one:
        one.wait_for_work()
        write_proxy_totals(tmp_path, ProxyTotals(held_s=PATIENCE_S))
        one.pass_time()
        (tmp_path / "workspace" / "go").touch()
        record = one.end()

    assert (Ending.COMPLETED, 0.2) == (record.terminated.ending, record.closed.score)


def test_time_without_a_proxy_is_not_charged_either(tmp_path):
    """SPEC 6.1: whoever waits for one that is being started again waits for an engine too."""

    async def run():
        now, tried, came = [0.0], [], asyncio.Event()
        again = asyncio.Event()

        async def connect(host, port):
            """It refuses, and when it is asked again it takes its time."""
            tried.append(port)
            if len(tried) > 1:
                again.set()
                await came.wait()
            raise ConnectionRefusedError

        proxy = Upstream(lambda: ("h", 1), connect=connect, clock=lambda: now[0])
        waiting = asyncio.create_task(proxy.reached(lambda: not came.is_set()))
        await again.wait()
        now[0] = 4.0
        write_proxy_totals(tmp_path, ProxyTotals(held_s=3.0))
        found = AllHeldCalls(tmp_path, proxy).held_s
        came.set()
        await waiting
        return found

    assert 7.0 == asyncio.run(run())


def test_time_without_a_proxy_is_not_charged_by_the_next_supervisor(tmp_path, monkeypatch):
    """Whose relay knows nothing of it."""
    waited_s, before_s = 1e6, 10.0
    monkeypatch.setattr(Upstream, "waited_s", waited_s)
    file = FactsFile(tmp_path)
    for fact in (Prepared(mark="m"), Launched(monotonic_s=0.0, boot="another")):
        file.append(fact, at=0.0)
    file.close()
    Heartbeat(tmp_path).charge(lambda: before_s - BEAT_S)
    with closing(SupervisorProcess(tmp_path, order(HALF), Secrets(), reporter=None)) as one:
        found = one.spent_s()

    assert before_s <= found + waited_s < before_s + PATIENCE_S


def test_the_overall_deadline_ends_evaluation(tmp_path):
    """SPEC 6.3: FAULTS 17."""
    seen = tmp_path / "seen"
    judge = evaluation("touch $SEEN; sleep 600", attempts=1000, attempt_s=3 * PATIENCE_S)
    limits = {"agent_s": PATIENCE_S / 2, "overall_s": 0.9 * PATIENCE_S}
    wanted = order(HALF, judge=judge, variables={"SEEN": str(seen)}, **limits)
    with supervised(tmp_path / "e1", wanted) as one:
        wait_until(seen.exists, "an attempt")
        one.pass_time()
        record = one.end()

    assert (Outcome.EXCLUDED, None) == (record.closed.outcome, record.closed.score)
    assert [UNRESOLVED] == [made.status for made in record.assessments]


def test_an_evaluator_changes_its_own_copy_only(tmp_path):
    judge = evaluation(
        f"{COUNT_LINES}; echo more >> work; rm -rf ../home; "
        "test -e $SEEN || { touch $SEEN; rm -rf ./* $GYRE_RESULTS/*; chmod 0 .; }"
    )
    variables = {"SEEN": str(tmp_path / "seen")}
    with supervised(tmp_path / "e1", order(HALF, judge=judge, variables=variables)) as one:
        record = one.end()
    frozen = tmp_path / "e1" / "frozen"

    assert [UNRESOLVED, VALID] == [made.status for made in record.assessments]
    assert 0.1 == record.closed.score
    assert {record.terminated.state.reference} == {made.reference for made in record.assessments}
    assert record.terminated.state.reference == content_hash(frozen)
    assert "one\n" == (frozen / "work").read_text()
    assert not (tmp_path / "e1" / "workspace").exists()


def test_a_state_that_was_tampered_with_is_not_assessed(tmp_path):
    """SPEC 6.4: what is lost after it was frozen is excluded, not 0."""
    judge = evaluation("chmod -R u+w ../frozen; echo two >> ../frozen/work; exit 7")
    with supervised(tmp_path, order(HALF, judge=judge)) as one:
        record = one.end()

    assert [FAILED, FAILED] == [made.status for made in record.assessments]
    assert "not those that were frozen" in record.closed.reason
    assert Outcome.EXCLUDED is record.closed.outcome


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        (None, Outcome.EXCLUDED),
        (ProxyTotals(committed_calls=3), Outcome.EXCLUDED),
        (ProxyTotals(committed_calls=0), Outcome.PLACEHOLDER),
    ],
)
def test_a_lost_workspace_is_a_placeholder_only_if_no_call_was_committed(told, expected, tmp_path):
    """SPEC 6.4."""
    with supervised(tmp_path, order("until test -e go; do :; done; rm -rf $PWD")) as one:
        if told is not None:
            write_proxy_totals(tmp_path, told)
        wait_until((tmp_path / "workspace").exists)
        (tmp_path / "workspace" / "go").touch()
        record = one.end()

    assert "the workspace is lost" in record.terminated.reason
    assert (expected, None) == (record.closed.outcome, record.closed.score)


def test_a_disk_that_is_full_is_named(tmp_path):
    """FAULTS 14: a limit on file sizes stands for the full disk."""
    files = tmp_path / "files"
    files.mkdir()
    (files / "big").write_bytes(bytes(2**20))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**16, before[1]))
    try:
        process = start(tmp_path / "e1", order(HALF, files=str(files)), Secrets(key="k"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    record = Supervised(tmp_path / "e1", process).end()

    assert Ending.NEVER_STARTED is record.terminated.ending
    assert "File too large" in record.terminated.reason
    assert Outcome.PLACEHOLDER is record.closed.outcome


def test_an_agent_whose_disk_is_full_is_scored_by_what_it_wrote(tmp_path):
    """FAULTS 14: it began, so it is no placeholder."""
    full = "trap '' XFSZ; ulimit -f 8; head -c 1000000 /dev/zero > big"
    with supervised(tmp_path, order(HALF + full)) as one:
        record = one.end()

    assert (Ending.CRASHED, Outcome.VALID, 0.1) == (
        record.terminated.ending,
        record.closed.outcome,
        record.closed.score,
    )


def test_a_workspace_that_cannot_be_made_is_named(tmp_path):
    wanted = order(HALF, files=str(tmp_path / "no such files"), counts_placeholders=False)
    with supervised(tmp_path / "e1", wanted) as one:
        record = one.end()

    assert (Ending.NEVER_STARTED, False) == (record.terminated.ending, record.was_launched)
    assert "no such files" in record.terminated.reason
    assert Outcome.EXCLUDED is record.closed.outcome


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda text: text[:-10], "expected an order"),
        (lambda text: text.replace('"format":1', '"format":2'), "format 1, found 2"),
        (
            lambda text: text.replace(f'"agent_s":{PATIENCE_S}', f'"agent_s":{3 * PATIENCE_S}'),
            "agent_s < overall_s",
        ),
        (lambda text: text.replace('"sh",', "").replace('"-c",', '"{key}",'), "environment"),
    ],
)
def test_a_bad_order_is_refused_before_anything_starts(change, complaint, tmp_path):
    text = write_order(tmp_path / "good", order(HALF)).read_text()
    bad = tmp_path / "bad"
    bad.mkdir()
    (bad / "order.json").write_text(change(text))
    process = resume(bad, Secrets(key="k"))

    assert 2 == process.wait(PATIENCE_S)
    assert complaint in (bad / "supervisor.log").read_text()
    assert not (bad / "workspace").exists()


def test_without_a_key_nothing_is_launched(tmp_path):
    write_order(tmp_path, order(HALF))
    process = resume(tmp_path, Secrets())

    assert 2 == process.wait(PATIENCE_S)
    assert "expected the execution's key" in (tmp_path / "supervisor.log").read_text()
    with_key = resume(tmp_path, Secrets(key="k"))
    assert 0 == with_key.wait(PATIENCE_S)
    assert Outcome.VALID is outcome.read_outcome(tmp_path).closed.outcome


def test_a_supervisor_is_light():
    """There is one for every execution: neither arrays nor a server belong in it."""
    code = "import sys, gyre.rollout.main; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert "msgspec" in done.stdout.split()
    assert set() == {"numpy", "torch", "aiohttp", "uvicorn"} & set(done.stdout.split())


def test_attempts_are_facts_in_order(tmp_path):
    with supervised(tmp_path, order(HALF, judge=GARBAGE)) as one:
        one.end()

    assert ["Prepared", "Launched", "Terminated", "Assessed", "Assessed", "Closed"] == [
        type(fact).__name__ for fact in one.facts
    ]
    assert [1, 2] == [fact.assessment.attempt for fact in one.facts if isinstance(fact, Assessed)]
    assert Path(tmp_path / "evaluation.txt").exists()
