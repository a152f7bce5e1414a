"""gyre rollout and gyre evaluate with real processes: what they execute, keep, say and leave."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.backends.evaluators.judged import endpoint
from tests.run.supervised import is_alive
from tests.watch.journaled import SMALL, journal

from gyre import calls
from gyre.cli.main import main
from gyre.model.known import model_folder
from gyre.rollout import facts, outcome
from gyre.run.rollout_results import read_summary
from gyre.run.supervise import is_supervised
from gyre.testing import light_agent
from gyre.testing.emulated_run import workload, write_tasks
from gyre.words.events import EvaluationRound
from gyre.words.outcomes import Launched, Outcome, Terminated
from gyre.words.records import CallClosed

pytestmark = pytest.mark.slow

AGENT = ["python3", "-S", "-E", light_agent.__file__, "{instruction}"]
EMULATED = ["--set", "cells.engine=gyre.testing.emulated:engine", "--set", "engine.kv_tokens=16384"]


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


def rolled(folder, tasks, capsys, *options, command="rollout", subject=(), agent=AGENT):
    asked = [command, *subject, str(tasks), "--run", str(folder), *EMULATED, *options]
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
        [*command, "--", *AGENT], capture_output=True, text=True, check=False, timeout=200
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
        record = outcome.read(whole.folder / "attempts" / name)
        logged = calls.read(calls.path_of(whole.folder, name)).records

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
    assert [] == [one for one in whole.executions if is_supervised(whole.folder / "attempts" / one)]
    assert [] == left_running(whole.folder)


def test_interrupted_it_ends_everything_and_says_so(tmp_path):
    command = [sys.executable, "-m", "gyre", "rollout", str(work(tmp_path, mean_s=60.0))]
    command += ["--model", "tiny", "--run", str(tmp_path / "run"), "--n", "2", *EMULATED]
    process = subprocess.Popen(
        [*command, "--", "sh", "-c", "echo x > begun; sleep 60"],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    until_launched(tmp_path / "run", process)
    os.killpg(process.pid, signal.SIGINT)
    said, _ = process.communicate(timeout=60)

    assert 130 == process.returncode
    assert "interrupted after 0 of 6" in said
    assert not read_summary(tmp_path / "run").is_whole
    assert [] == left_running(tmp_path / "run")


def test_a_harness_that_cannot_start_leaves_counted_placeholders(tmp_path, capsys):
    """SPEC 6.4: and the exit status says that nothing was assessed."""
    ran = rolled(
        tmp_path / "run",
        work(tmp_path, tasks=1),
        capsys,
        *["--model", "tiny", "--n", "2"],
        agent=["/no/such/program"],
    )

    assert 1 == ran.status
    assert {("placeholder", 0.0)} == {
        (one["outcome"], one["score"]) for one in ran.results.values()
    }
    assert "2 of them placeholders" in ran.said
    assert "/no/such/program" in ran.said


def test_what_no_evaluator_could_score_is_in_no_mean(tmp_path, capsys):
    """SPEC 6.3: while a valid zero is."""
    judge = (
        "test -s zero && echo 0 > $GYRE_RESULTS/reward.txt || echo -1 > $GYRE_RESULTS/reward.txt"
    )
    tasks = tmp_path / "tasks.jsonl"
    rule = {"argv": ["sh", "-c", judge], "score": "reward.txt", "attempts": 1}
    one = {"id": "t", "instruction": "x", "evaluation": rule}
    tasks.write_text(json.dumps(one) + "\n")
    agent = ["sh", "-c", 'case "$OPENAI_BASE_URL" in *-00/v1) echo x > zero;; esac']
    ran = rolled(tmp_path / "run", tasks, capsys, "--model", "tiny", "--n", "3", agent=agent)
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
    (assessed,) = outcome.read(ran.folder / "attempts" / "g00000-00").assessments
    log = calls.path_of(ran.folder, "g00000-00").read_bytes()

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
        shutil.copytree(model_folder("tiny"), run / "weights" / f"v{version:06d}")
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
    curve = said[said.index("held-out score") :].splitlines()[1:]
    assert ["2", "4"] == [line.split()[0] for line in curve]
    assert "0.250 ± 0.125" in curve[0]
    assert f"{summary.spread.score.mean:.3f}" in curve[1]


def test_an_engine_that_is_there_already_is_used_and_left_alone(tmp_path, capsys):
    """By a second rollout's proxy in front of the first one's kind of engine."""
    command = [sys.executable, "-m", "gyre", "serve", "tiny", "--port", "0", "--kv-tokens", "16384"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        said = [process.stdout.readline(), process.stdout.readline()]
        url = said[0].split()[2]
        tasks = work(tmp_path, tasks=1)
        ran = rolled(tmp_path / "run", tasks, capsys, "--engine", f"gyre={url}", "--n", "1")

        assert (0, ["ready\n"]) == (ran.status, said[1:])
        assert "tiny" == read_summary(ran.folder).model
        assert process.poll() is None
    finally:
        process.terminate()
        process.communicate(timeout=60)


def wait_until(holds, *, within_s):
    until = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.02)


def until_launched(run, process):
    def has_begun():
        assert process.poll() is None
        return any(run.glob("attempts/*/workspace/begun"))

    wait_until(has_begun, within_s=120.0)


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
