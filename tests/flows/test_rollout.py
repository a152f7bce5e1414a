"""gyre rollout and gyre evaluate with real processes: what they execute, keep, say and leave."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path

import pytest
from examples.recording import agent_script
from tests.controller.support.supervised import is_alive
from tests.observability.support.journals import SMALL, journal
from tests.rewards.support.judged import endpoint
from tests.waiting import PATIENCE_S, wait_until

from gyre.cell import client
from gyre.cli.main import main
from gyre.cluster import liveness
from gyre.cluster.process import holder_of
from gyre.config.loader import loaded
from gyre.evals.results import curve, read_summary
from gyre.evals.runner import due, measured
from gyre.model.registry import model_folder
from gyre.rollout import facts
from gyre.rollout import facts as outcome
from gyre.storage import call_log
from gyre.storage.files import is_taken
from gyre.testing import light_agent
from gyre.testing.emulated_cell import workload, write_tasks
from gyre.testing.processes import EngineProcess
from gyre.testing.tokenizer import write_tokenizer
from gyre.types.call_records import CallClosed
from gyre.types.outcomes import Launched, Outcome, Terminated
from gyre.types.run_events import EvaluationRound

pytestmark = pytest.mark.slow

AGENT = ["python3", "-S", "-E", light_agent.__file__, "{instruction}"]
EMULATED = [
    "--set",
    "cells.engine=gyre.testing.emulated_cell:engine",
    "--set",
    "engine.kv_tokens=16384",
]


@dataclass
class Rolled:
    """A rollout that is over."""

    folder: Path
    status: int
    said: str

    @property
    def results(self):
        lines = (self.folder / "results.jsonl").read_text().splitlines()
        return {one["execution"]: one for one in map(json.loads, lines)}

    @property
    def executions(self):
        return sorted(path.name for path in (self.folder / "attempts").iterdir())


def work(folder, *, tasks=3, mean_s=0.2):
    return write_tasks(
        folder / "tasks.jsonl", workload(tasks=tasks, members=2, seed=1, mean_s=mean_s)
    )


def rolled(folder, tasks, capsys, *options, agent=AGENT, engine=None):
    """With an engine of its own, unless it is given one that is there."""
    told = EMULATED if engine is None else ["--engine", engine]
    asked = ["rollout", str(tasks), "--run", str(folder), *told, *options]
    status = main([*asked, "--", *agent])
    out, err = capsys.readouterr()
    assert "" == err
    return Rolled(folder, status, out)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """One that several tests look at; what it prints is read from a file."""
    folder = tmp_path_factory.mktemp("whole")
    command = [sys.executable, "-m", "gyre", "rollout", str(work(folder)), "--model", "tiny"]
    command += ["--run", str(folder / "run"), "--n", "2", "--concurrency", "2", *EMULATED]
    done = subprocess.run(
        [*command, "--", *AGENT], capture_output=True, text=True, check=False, timeout=PATIENCE_S
    )
    assert "" == done.stderr
    return Rolled(folder / "run", done.returncode, done.stdout)


def test_every_task_is_executed_as_often_as_asked(whole):
    names = [f"g{group:05d}-{member:02d}" for group in range(3) for member in range(2)]

    assert 0 == whole.status
    assert names == whole.executions == sorted(whole.results)
    assert {"valid"} == {one["outcome"] for one in whole.results.values()}
    assert ["task-0", "task-0", "task-1"] == [whole.results[name]["task"] for name in names[:3]]


def test_outcomes_and_trees_are_kept(whole):
    """What the proxy recorded is what export and inspect read."""
    for name, one in whole.results.items():
        record = outcome.read_outcome(whole.folder / "attempts" / name)
        logged = call_log.read(call_log.path_of(whole.folder, name)).records

        assert (Outcome.VALID, one["score"]) == (record.closed.outcome, record.closed.score)
        assert one["calls"] == sum(isinstance(line, CallClosed) for line in logged) > 0
        assert [0] == one["versions"]


def test_its_score_and_spread_are_said_and_written(whole):
    summary = read_summary(whole.folder)
    means = {}
    for one in whole.results.values():
        means.setdefault(one["task"], []).append(one["score"])
    mean = sum(sum(scores) / 2 for scores in means.values()) / 3

    assert (True, 6, 3) == (summary.is_whole, summary.spread.num_valid, len(summary.spread.tasks))
    assert pytest.approx(mean) == summary.spread.score.mean
    assert "6 executions of 3 tasks, 6 with a score" in whole.said
    assert 6 == sum(line.startswith("[") for line in whole.said.splitlines())


def test_no_more_run_at_once_than_asked(whole):
    """Times of launch and termination are by one clock."""
    moves = []
    for name in whole.executions:
        known = [entry.fact for entry in facts.read(whole.folder / "attempts" / name)]
        (launched,) = [fact for fact in known if isinstance(fact, Launched)]
        (ended,) = [fact for fact in known if isinstance(fact, Terminated)]
        moves += [(launched.monotonic_s, 1), (launched.monotonic_s + ended.elapsed_s, -1)]
    running = most = 0
    for _, move in sorted(moves):
        running += move
        most = max(most, running)

    assert 2 == most


def test_nothing_runs_on(whole):
    wait_until_gone(whole.folder)
    assert [] == [one for one in whole.executions if is_taken(whole.folder / "attempts" / one)]


FIRST, SECOND = "g00000-00", "g00000-01"


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    """One that nobody calls, so that rollouts need not start their own."""
    folder = tmp_path_factory.mktemp("engine")
    tokenizer = write_tokenizer(folder) / "tokenizer.json"
    script = f"{agent_script.__file__}:script"
    with EngineProcess(
        "sglang", script=script, tokenizer=tokenizer, log=folder / "asks.jsonl"
    ) as process:
        yield process.address


def waiting(folder, go, engine):
    """A rollout of one task by two agents, each of which waits for a file of its name in `go`."""
    judge = "echo 0.$(wc -l < begun) > $GYRE_RESULTS/reward.txt"
    rule = {"argv": ["sh", "-c", judge], "score": "reward.txt"}
    (folder / "tasks.jsonl").write_text(
        json.dumps({"id": "t", "instruction": "x", "evaluation": rule}) + "\n"
    )
    command = [sys.executable, "-m", "gyre", "rollout", str(folder / "tasks.jsonl")]
    command += ["--model", "tiny", "--run", str(folder / "run"), "--n", "2", "--engine", engine]
    command += ["--set", "sandbox.kind=process", "--", "sh", "-c"]
    agent = 'name=${OPENAI_BASE_URL%/v1}; echo x >> begun; until test -e "$0/${name##*/}"; do '
    agent += "sleep 0.02; done"
    return subprocess.Popen(
        [*command, agent, str(go)], stdout=subprocess.PIPE, text=True, start_new_session=True
    )


def until_begun(folder, *names):
    for name in names:
        begun = folder / "run" / "attempts" / name / "workspace" / "begun"
        wait_until(begun.exists)


def test_interrupted_it_ends_everything_and_the_same_command_goes_on(tmp_path, engine):
    """What had closed stays, and what was ended begins anew under another name."""
    go = tmp_path / "go"
    go.mkdir()
    process = waiting(tmp_path, go, engine)
    until_begun(tmp_path, FIRST, SECOND)
    (go / FIRST).touch()
    results = tmp_path / "run" / "results.jsonl"
    wait_until(lambda: results.exists() and results.read_text())
    os.killpg(process.pid, signal.SIGINT)
    said, _ = process.communicate(timeout=PATIENCE_S)
    is_whole = read_summary(tmp_path / "run").is_whole
    wait_until_gone(tmp_path / "run")
    (go / "g00000.1-01").touch()
    again = waiting(tmp_path, go, engine)
    said_again, _ = again.communicate(timeout=PATIENCE_S)
    ran = Rolled(tmp_path / "run", again.returncode, said_again)

    assert (130, False) == (process.returncode, is_whole)
    assert "interrupted after 1 of 2" in said
    assert f"goes on with --run {tmp_path / 'run'}" in said
    assert 0 == ran.status
    assert {FIRST: 0.1, "g00000.1-01": 0.1} == {
        name: one["score"] for name, one in ran.results.items()
    }
    assert (True, 2) == (
        read_summary(ran.folder).is_whole,
        read_summary(ran.folder).spread.num_valid,
    )


def test_killed_it_is_followed_by_one_that_adopts_what_runs(tmp_path, engine):
    """No agent is started twice: a live supervisor is adopted, a dead one's work is assessed."""
    go = tmp_path / "go"
    go.mkdir()
    process = waiting(tmp_path, go, engine)
    until_begun(tmp_path, FIRST, SECOND)
    process.kill()
    process.communicate(timeout=PATIENCE_S)
    attempts = tmp_path / "run" / "attempts"
    share = Path((tmp_path / "run" / "share").read_text().strip())
    assert share.is_dir()
    os.kill(holder_of(attempts / SECOND / "supervisor.log"), signal.SIGKILL)
    wait_until(lambda: not is_taken(attempts / SECOND))
    was_alive = is_taken(attempts / FIRST)
    again = waiting(tmp_path, go, engine)
    wait_until(lambda: outcome.read_outcome(attempts / SECOND) is not None)
    (go / FIRST).touch()
    said, _ = again.communicate(timeout=PATIENCE_S)
    ran = Rolled(tmp_path / "run", again.returncode, said)

    assert (True, 0) == (was_alive, ran.status)
    assert {FIRST: ("completed", 0.1), SECOND: ("crashed", 0.1)} == {
        name: (one["ending"], one["score"]) for name, one in ran.results.items()
    }
    wait_until_gone(tmp_path / "run")
    assert not share.exists()


def test_one_that_has_ended_is_told_again_and_starts_nothing(whole):
    command = [sys.executable, "-m", "gyre", "rollout", str(whole.folder.parent / "tasks.jsonl")]
    command += ["--model", "tiny", "--run", str(whole.folder), "--n", "2", *EMULATED]
    before = (whole.folder / "results.jsonl").read_bytes()
    again = subprocess.run(
        [*command, "--", *AGENT], capture_output=True, text=True, check=False, timeout=PATIENCE_S
    )

    assert (0, "") == (again.returncode, again.stderr)
    assert before == (whole.folder / "results.jsonl").read_bytes()
    assert 6 == sum(line.startswith("[") for line in again.stdout.splitlines())


def test_a_harness_that_cannot_start_leaves_counted_placeholders(tmp_path, capsys, engine):
    """SPEC 6.4: and the exit status says that nothing was assessed."""
    ran = rolled(
        tmp_path / "run",
        work(tmp_path, tasks=1),
        capsys,
        *["--model", "tiny", "--n", "2"],
        agent=["/no/such/program"],
        engine=engine,
    )

    assert 1 == ran.status
    assert {("placeholder", 0.0)} == {
        (one["outcome"], one["score"]) for one in ran.results.values()
    }
    assert "2 of them placeholders" in ran.said
    assert "/no/such/program" in ran.said


def test_what_no_evaluator_could_score_is_in_no_mean(tmp_path, capsys, engine):
    """SPEC 6.3: while a valid zero is."""
    judge = (
        "test -s zero && echo 0 > $GYRE_RESULTS/reward.txt || echo -1 > $GYRE_RESULTS/reward.txt"
    )
    tasks = tmp_path / "tasks.jsonl"
    rule = {"argv": ["sh", "-c", judge], "score": "reward.txt", "attempts": 1}
    one = {"id": "t", "instruction": "x", "evaluation": rule}
    tasks.write_text(json.dumps(one) + "\n")
    agent = ["sh", "-c", 'case "$OPENAI_BASE_URL" in *-00/v1) echo x > zero;; esac']
    how = ["--model", "tiny", "--n", "3"]
    ran = rolled(tmp_path / "run", tasks, capsys, *how, agent=agent, engine=engine)
    spread = read_summary(ran.folder).spread

    assert (0, 3, 1) == (ran.status, spread.num_executions, spread.num_valid)
    assert (0.0, 1) == (spread.score.mean, spread.score.num)
    assert "the evaluator could not tell" in ran.said


def test_a_judge_gives_the_reward_and_its_critique_is_in_no_log(tmp_path, capsys, monkeypatch):
    """SPEC 6.2."""
    monkeypatch.setenv("JUDGE_KEY", "secret-of-the-judge")
    tasks = tmp_path / "tasks.jsonl"
    rule = {"rubric": {"text": "Is there a reply?"}}
    turns = json.dumps([{"reply_s": 0.01, "words": 4}])
    tasks.write_text(json.dumps({"id": "t", "instruction": turns, "evaluation": rule}) + "\n")
    with endpoint(lambda body: '{"score": 0.75, "reason": "very critical indeed"}') as one:
        judge = ["--set", f"evaluate.judge.url={one.url}", "--set", "evaluate.judge.model=m"]
        judge += ["--set", "evaluate.judge.key_env=JUDGE_KEY"]
        ran = rolled(tmp_path / "run", tasks, capsys, "--model", "tiny", "--n", "1", *judge)
    (result,) = ran.results.values()
    (assessed,) = outcome.read_outcome(ran.folder / "attempts" / "g00000-00").assessments
    log = call_log.path_of(ran.folder, "g00000-00").read_bytes()

    assert (0, 0.75, 1) == (ran.status, result["score"], result["calls"])
    assert ("judge m", 1) == (assessed.evaluator, assessed.attempt)
    assert ["Bearer secret-of-the-judge"] == one.keys
    assert "replies.txt" in one.asked[0]["messages"][1]["content"]
    assert b"very critical indeed" not in log
    assert [] == [
        path
        for path in ran.folder.rglob("*")
        if path.is_file() and b"secret-of-the-judge" in path.read_bytes()
    ]


def test_a_runs_newest_weights_are_measured_beside_its_own_rounds(tmp_path, capsys):
    """SPEC 6.6."""
    run = tmp_path / "trained"
    for version in (2, 4):
        shutil.copytree(model_folder("tiny"), run / "checkpoints" / f"v{version:06d}")
    rounds = EvaluationRound(version=2, num_tasks=4, num_valid=4, mean=0.25, standard_error=0.125)
    journal(run / "journal", SMALL, [(0.0, rounds)])
    tasks = work(tmp_path, tasks=2)
    # The engine that is built in, because the emulated one has no weights of its own.
    short = ["--set", "sampling.max_tokens=8", "--set", "engine.kv_tokens=16384"]
    status = main(["evaluate", str(run), str(tasks), "--n", "1", *short, "--", *AGENT])
    said = capsys.readouterr().out
    summary = read_summary(run / "evaluations" / "v000004-001")

    assert 0 == status
    assert (4, (4,)) == (summary.version, summary.versions)
    told = said[said.index("held-out score") :].splitlines()[1:]
    assert ["2", "4"] == [line.split()[0] for line in told]
    assert "0.250 ± 0.125" in told[0]
    assert f"{summary.spread.score.mean:.3f}" in told[1]


def test_the_weights_that_a_run_ends_with_stand_in_its_curve(tmp_path):
    """SPEC 6.6: the scheduler stops at their publication."""
    run = tmp_path / "trained"
    shutil.copytree(model_folder("tiny"), run / "checkpoints" / "v000004")
    tables = {
        "model": {"name": "tiny"},
        "schedule": {"groups_per_batch": 1, "executions_per_group": 2, "steps": 4},
        "cells": {"count": 1, "capacity": 2, "engine": "gyre.testing.emulated_cell:engine"},
        "engine": {"kv_tokens": 16384},
        "sandbox": {"kind": "process"},
        "harness": {"kind": "command", "argv": AGENT},
        "tasks": {"kind": "jsonl", "path": "none"},
        "evaluation": {"slots": 2, "tasks": {"kind": "jsonl", "path": str(work(tmp_path))}},
    }
    summary = measured(due(loaded("test", tables, ()).config, run))
    curve_of = list(curve(run))

    assert (4, 3, True) == (summary.version, summary.spread.num_valid, summary.is_whole)
    assert ["4"] == [line.split()[0] for line in curve_of[1:]]
    assert f"{summary.spread.score.mean:.3f}" in curve_of[1]


def test_an_engine_that_is_there_already_is_used_and_left_alone(tmp_path, capsys):
    """By a second rollout's proxy in front of the first one's kind of engine."""
    command = [sys.executable, "-m", "gyre", "serve", "tiny", "--port", "0", "--kv-tokens", "16384"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        said = [process.stdout.readline(), process.stdout.readline()]
        url = said[0].split()[2]
        tasks = work(tmp_path, tasks=1)
        ran = rolled(tmp_path / "run", tasks, capsys, "--n", "1", engine=f"gyre={url}")

        assert (0, ["ready\n"]) == (ran.status, said[1:])
        assert "tiny" == read_summary(ran.folder).model
        assert process.poll() is None
    finally:
        process.terminate()
        process.communicate(timeout=PATIENCE_S)


def left_running(folder):
    """Processes that know of the folder."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            known = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
        except OSError:
            continue
        if os.fsencode(folder) in known and int(entry.name) != os.getpid():
            found.append(int(entry.name))
    return [pid for pid in found if is_alive(pid)]


def wait_until_gone(folder):
    """A supervisor that has said its last word may take a moment to its end."""
    wait_until(lambda: not left_running(folder), f"the end of {left_running(folder)}")


def test_an_engine_that_hangs_ends_it_by_name(tmp_path, capsys, monkeypatch):
    """FAULTS I10: the process lives and answers nobody, and every agent would wait."""
    # So that it takes four questions in vain, for which the proxy is given seconds.
    monkeypatch.setattr(liveness, "SILENT_S", 0.4)
    monkeypatch.setattr(liveness, "BEAT_S", 0.1)
    log, is_over = tmp_path / "run" / "logs" / "engine.log", threading.Event()

    def hang():
        while not (tmp_path / "run" / "attempts" / FIRST).exists():
            if is_over.wait(0.01):
                return
        if (pid := holder_of(log)) is not None:
            os.kill(pid, signal.SIGSTOP)
            monkeypatch.setattr(client, "HEALTH_S", 0.5)

    hanging = threading.Thread(target=hang)
    hanging.start()
    asked = ["rollout", str(work(tmp_path)), "--model", "tiny", "--run", str(tmp_path / "run")]
    try:
        status = main([*asked, *EMULATED, "--", "sh", "-c", "sleep 600"])
    finally:
        is_over.set()
        hanging.join()
    out, err = capsys.readouterr()

    assert 0 != status
    assert "the engine ended with status -9" in out + err
    wait_until_gone(tmp_path / "run")
