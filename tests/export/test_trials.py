"""Executions written as Harbor's trials."""

import json
from dataclasses import replace

import pytest
from tests.controller.support.supervised import order
from tests.storage.test_call_log import CLOSED, OPENED

from gyre.cli.main import main
from gyre.export.harbor import write_job, write_trial
from gyre.rollout import facts
from gyre.rollout.execution import Execution
from gyre.rollout.facts import FactsFile
from gyre.rollout.spec import write_order
from gyre.storage.call_log import CallLog, path_of
from gyre.types.call_records import CallDelivered, CallOpened
from gyre.types.conversation import Message, ToolCall
from gyre.types.errors import ConfigError
from gyre.types.ids import CallId
from gyre.types.outcomes import (
    Assessed,
    Assessment,
    Closed,
    Ending,
    Launched,
    Outcome,
    Prepared,
    State,
    Status,
    Terminated,
)

STATE = State(folder="frozen", reference="abc")


def assessment(attempt, score, reason=None):
    status = Status.UNRESOLVED if score is None else Status.VALID
    return Assessment(
        status=status,
        score=score,
        reason=reason,
        reference="abc",
        evaluator="command bash",
        attempt=attempt,
    )


def ended(run, name, *, ending=Ending.COMPLETED, closed, made, task="org/count"):
    """An execution of a run with its facts and outcome, ten seconds from fact to fact."""
    folder = run / "attempts" / name
    wanted = order("true")
    wanted = replace(wanted, execution=name, task=replace(wanted.task, id=task))
    write_order(folder, wanted)
    execution, said = Execution(name, task, []), FactsFile(folder)
    terminated = Terminated(ending=ending, reason="why", elapsed_s=10.0, state=STATE)
    all_facts = [
        Prepared(mark="m"),
        Launched(monotonic_s=1.0, boot="b"),
        terminated,
        *(Assessed(assessment=one) for one in made),
        closed,
    ]
    for number, fact in enumerate(all_facts):
        execution.apply(fact)
        said.append(fact, at=10.0 * number)
    said.close()
    facts.write(folder, execution.record)
    (folder / "output.txt").write_text("agent said")
    (folder / "evaluation.txt").write_text("tests said")
    return folder


def called(run, name):
    """A log with one committed call of the main agent, and one that nobody was told of."""
    path = path_of(run, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    call = ToolCall(id="c1", name="bash", arguments='{"cmd": "ls"}')
    reply = Message(role="assistant", text="looking", calls=(call,))
    log = CallLog(path)
    log.append(
        replace(OPENED, execution=name),
        CallOpened(call=CallId(1), at=1.0, dialect="chat", num_messages=1, prompt_tokens=7),
        replace(CLOSED, message=reply),
        CallDelivered(call=CallId(1)),
        CallOpened(call=CallId(2), at=1.0, dialect="chat", num_messages=1, prompt_tokens=70),
        replace(CLOSED, call=CallId(2)),
    )
    log.close()
    return path


VALID = Closed(outcome=Outcome.VALID, score=0.5, reason=None)


def read(path):
    return json.loads(path.read_text())


def test_a_trial_says_what_the_execution_came_to(tmp_path):
    made = [assessment(1, None, "hung"), assessment(2, 0.5)]
    folder = ended(tmp_path, "e1", closed=VALID, made=made)
    trial = tmp_path / "jobs" / "j" / "e1"
    write_trial(folder, trial, log=called(tmp_path, "e1"))
    result, trajectory = read(trial / "result.json"), read(trial / "agent" / "trajectory.json")

    assert {"rewards": {"reward": 0.5}} == result["verifier_result"]
    assert {"org": "org", "name": "count"} == result["task_id"]
    assert (None, "sh", "m") == (
        result["exception_info"],
        result["agent_info"]["name"],
        result["agent_info"]["model_info"]["name"],
    )
    assert (7, 1) == (
        result["agent_result"]["n_input_tokens"],
        result["agent_result"]["n_output_tokens"],
    )
    assert "1970-01-01T00:00:10+00:00" == result["agent_execution"]["started_at"]
    assert "1970-01-01T00:00:50+00:00" == result["finished_at"]
    assert ["user", "agent"] == [step["source"] for step in trajectory["steps"]]
    assert {"cmd": "ls"} == trajectory["steps"][1]["tool_calls"][0]["arguments"]
    assert {"reward": 0.5} == read(trial / "verifier" / "reward.json")
    assert "tests said" == (trial / "verifier" / "test-stdout.txt").read_text()
    assert "agent said" == (trial / "agent" / "output.txt").read_text()


def test_every_assessment_is_kept_beside_the_trial(tmp_path):
    made = [assessment(1, None, "hung"), assessment(2, 0.5)]
    trial = tmp_path / "t"
    write_trial(ended(tmp_path, "e1", closed=VALID, made=made), trial, log=None)
    lines = [json.loads(line) for line in (trial / "assessments.jsonl").read_text().splitlines()]

    assert [("unresolved", None, "hung"), ("valid", 0.5, None)] == [
        (one["status"], one["score"], one["reason"]) for one in lines
    ]
    assert ["abc", "abc"] == [one["reference"] for one in lines]


EXCLUDED = Closed(outcome=Outcome.EXCLUDED, score=None, reason="no score")


@pytest.mark.parametrize(
    ("ending", "closed", "kind"),
    [
        (Ending.TIMED_OUT, VALID, "AgentTimeoutError"),
        (Ending.CRASHED, VALID, "NonZeroAgentExitCodeError"),
        (Ending.CANCELLED, VALID, "CancelledError"),
        (Ending.COMPLETED, EXCLUDED, "VerifierOutputParseError"),
    ],
)
def test_what_went_wrong_has_harbors_name(ending, closed, kind, tmp_path):
    made = [assessment(1, closed.score, None if closed.score else "no score")]
    folder = ended(tmp_path, "e1", ending=ending, closed=closed, made=made)
    result = write_trial(folder, tmp_path / "t", log=None)

    assert kind == result["exception_info"]["exception_type"]
    assert (closed.score is None) == (result["verifier_result"] is None)
    assert (closed.score is None) == (not (tmp_path / "t" / "verifier" / "reward.json").exists())


def test_a_run_becomes_a_job(tmp_path):
    ended(tmp_path, "e1", closed=VALID, made=[assessment(1, 0.5)])
    ended(tmp_path, "e2", closed=EXCLUDED, made=[assessment(1, None, "hung")], task="plain")
    called(tmp_path, "e1")
    write_order(tmp_path / "attempts" / "e3", order("true"))
    out = tmp_path / "jobs" / "mine"

    assert 2 == write_job(tmp_path, out)
    found = read(out / "result.json")
    assert (2, 1) == (found["n_total_trials"], found["stats"]["n_errored_trials"])
    assert {"0.5": ["e1"]} == found["stats"]["evals"]["gyre"]["reward_stats"]["reward"]
    assert ["e1", "e2"] == sorted(path.parent.name for path in out.glob("*/result.json"))
    assert {"path": "plain"} == read(out / "e2" / "config.json")["task"]
    with pytest.raises(ConfigError, match="exists already"):
        write_job(tmp_path, out)


def test_a_run_without_ends_is_refused(tmp_path):
    write_order(tmp_path / "attempts" / "e3", order("true"))
    with pytest.raises(ConfigError, match="executions that have ended"):
        write_job(tmp_path, tmp_path / "out")
    with pytest.raises(ConfigError, match="has ended"):
        write_trial(tmp_path / "attempts" / "e3", tmp_path / "out", log=None)


def test_the_command_writes_a_folder_beside_the_run(tmp_path, capsys):
    ended(tmp_path, "e1", closed=VALID, made=[assessment(1, 0.5)])

    assert 0 == main(["export", str(tmp_path), "--format", "harbor"])
    assert f"{tmp_path}/harbor/job: 1 trials\n" == capsys.readouterr().out
    assert (tmp_path / "harbor" / "job" / "e1" / "result.json").is_file()
    assert 2 == main(["export", str(tmp_path), "--format", "harbor", "--execution", "e1"])
