"""Executions as Harbor trials."""

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import NAMESPACE_URL, uuid5

from gyre.rewards.command import OUTPUT_FILE as TEST_OUTPUT_FILE
from gyre.rollout import facts
from gyre.rollout.facts import FactEntry
from gyre.rollout.spec import ORDER_FILE, ExecutionSpec, read_order
from gyre.rollout.supervisor import OUTPUT_FILE, STEPS, folder_of
from gyre.storage import call_log
from gyre.storage.files import replace
from gyre.types.call_records import (
    CallClosed,
    CallDelivered,
    CallEchoed,
    CallOpened,
    CallRecord,
    LogOpened,
)
from gyre.types.errors import ConfigError
from gyre.types.outcomes import (
    Assessed,
    Closed,
    Ending,
    Launched,
    Outcome,
    OutcomeRecord,
    Prepared,
    StepAssessed,
    StepEnded,
    StepStarted,
    Terminated,
)

Json = dict[str, Any]


def write_steps(
    order: ExecutionSpec, attempt: Path, trial: Path, entries: Sequence[FactEntry]
) -> list[Json] | None:
    """What is said of every step that was started; None where the task has none."""
    if not order.task.steps:
        return None
    num_steps, found = len(order.task.steps), []
    for number, step in enumerate(order.task.steps):
        if of_step := _of(entries, number):
            kept = folder_of(attempt, number, num_steps=num_steps)
            found.append(_write_step(step.name, kept, trial, of_step))
    return found


def _of(entries: Sequence[FactEntry], number: int) -> list[FactEntry]:
    """Entries of one step, which begin with its start."""
    found: list[FactEntry] = []
    at = -1
    for entry in entries:
        if isinstance(entry.fact, Launched | StepStarted):
            at += 1
        if at == number:
            found.append(entry)
    return found


def _write_step(name: str, kept: Path, trial: Path, entries: Sequence[FactEntry]) -> Json:
    # A name from elsewhere is a folder's name and nothing more.
    folder = trial / STEPS / name.replace("/", "_").strip(".")
    _copy_outputs(kept, folder)
    score = next(
        (
            entry.fact.assessment.score
            for entry in entries
            if isinstance(entry.fact, StepAssessed | Assessed)
            and entry.fact.assessment.score is not None
        ),
        None,
    )
    rewards = None if score is None else {"reward": score}
    if rewards is not None:
        replace(folder / "verifier" / "reward.json", json.dumps(rewards).encode())
    ended = next(
        (entry for entry in entries if isinstance(entry.fact, StepEnded | Terminated)), entries[-1]
    )
    return {
        "step_name": name,
        "verifier_result": None if rewards is None else {"rewards": rewards},
        "agent_execution": _span(entries[0], ended),
        "verifier": _span(ended, entries[-1]),
    }


def _copy_outputs(kept: Path, folder: Path) -> None:
    """What programs printed, in folders as Harbor has them."""
    for part in ("agent", "verifier", "artifacts"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    for source, target in (
        (OUTPUT_FILE, "agent/output.txt"),
        (TEST_OUTPUT_FILE, "verifier/test-stdout.txt"),
    ):
        if (kept / source).is_file():
            shutil.copyfile(kept / source, folder / target)


def _span(first: FactEntry, last: FactEntry) -> Json:
    return {"started_at": _timestamp(first.at), "finished_at": _timestamp(last.at)}


ASSESSMENTS_FILE = "assessments.jsonl"
SOURCE = "gyre"
TRAJECTORY = "ATIF-v1.7"
ENDINGS = {
    Ending.TIMED_OUT: "AgentTimeoutError",
    Ending.CRASHED: "NonZeroAgentExitCodeError",
    Ending.CANCELLED: "CancelledError",
    Ending.NEVER_STARTED: "SandboxBuildFailedError",
}
"""What Harbor calls endings that are not a completion."""
UNRESOLVED = "VerifierOutputParseError"


def write_job(run: Path, out: Path) -> int:
    """A folder with a trial for every terminated execution of a run; says how many there are.

    ConfigError if the run has none, or something else is there already.
    """
    attempts = [path.parent for path in sorted((run / "attempts").glob(f"*/{ORDER_FILE}"))]
    ended = [path for path in attempts if facts.read_outcome(path) is not None]
    if not ended:
        raise ConfigError(f"{run}: expected executions that have ended in attempts, found none")
    if out.exists():
        raise ConfigError(f"{out}: exists already")
    logs = {path.name.removesuffix(call_log.SUFFIX): path for path in call_log.logs(run)}
    results = [write_trial(path, out / path.name, log=logs.get(path.name)) for path in ended]
    agents = {result["agent_info"]["name"] for result in results}
    _write(
        out / "config.json",
        {
            "job_name": out.name,
            "jobs_dir": str(out.parent),
            "agents": [{"name": name} for name in sorted(agents)],
        },
    )
    _write(out / "result.json", _job(out, results))
    return len(results)


def write_trial(attempt: Path, trial: Path, *, log: Path | None) -> Json:
    """The trial of one execution's folder and call log; what its result.json says."""
    order = read_order(attempt / ORDER_FILE)
    record = facts.read_outcome(attempt)
    if record is None:
        raise ConfigError(f"{attempt}: expected an execution that has ended")
    records: Sequence[CallRecord] = () if log is None else call_log.read(log).records
    _copy_outputs(attempt, trial)
    _write(trial / "agent" / "trajectory.json", _trajectory(order, records))
    entries = facts.read(attempt)
    lines = [json.dumps(assessment, default=_plain) for assessment in _assessments(entries)]
    replace(trial / ASSESSMENTS_FILE, "".join(f"{line}\n" for line in lines).encode())
    rewards = _rewards(record)
    if rewards is not None:
        _write(trial / "verifier" / "reward.json", rewards)
    config = _config(order, trial)
    _write(trial / "config.json", config)
    result = _result(order, record, records, config, entries)
    if (steps := write_steps(order, attempt, trial, entries)) is not None:
        result["step_results"] = steps
    if result["exception_info"] is not None:
        said = result["exception_info"]["exception_message"]
        replace(trial / "exception.txt", f"{said}\n".encode())
    _write(trial / "result.json", result)
    return result


def _assessments(entries: Sequence[FactEntry]) -> list[Json]:
    """All that were made; those of a step that others may follow say which."""
    found = []
    for entry in entries:
        match entry.fact:
            case StepAssessed(step=step, assessment=one):
                found.append({"step": step} | asdict(one))
            case Assessed(assessment=one):
                found.append(asdict(one))
    return found


def _config(order: ExecutionSpec, trial: Path) -> Json:
    name = order.task.id
    is_package = name.count("/") == 1
    return {
        "task": {"name": name} if is_package else {"path": name},
        "trial_name": trial.name,
        "trials_dir": str(trial.parent),
        "agent": {"name": Path(order.harness[0]).name if order.harness else SOURCE},
        "job_id": str(uuid5(NAMESPACE_URL, str(trial.parent))),
    }


def _result(
    order: ExecutionSpec,
    record: OutcomeRecord,
    records: Sequence[CallRecord],
    config: Json,
    entries: Sequence[FactEntry],
) -> Json:
    at = {type(entry.fact): _timestamp(entry.at) for entry in entries}
    rewards = _rewards(record)
    org, _, short = order.task.id.rpartition("/")
    ended = at.get(Closed, at.get(Assessed, at.get(Terminated)))
    return {
        "id": str(uuid5(NAMESPACE_URL, f"{config['trials_dir']}/{config['trial_name']}")),
        "task_name": order.task.id,
        "trial_name": config["trial_name"],
        "trial_uri": Path(config["trials_dir"], config["trial_name"]).absolute().as_uri(),
        "task_id": {"org": org, "name": short} if "name" in config["task"] else config["task"],
        "source": SOURCE,
        "task_checksum": "",
        "config": config,
        "agent_info": {
            "name": config["agent"]["name"],
            "version": "unknown",
            "model_info": _model(records),
        },
        "agent_result": _tokens(records),
        "verifier_result": None if rewards is None else {"rewards": rewards},
        "exception_info": _exception(record, ended),
        "started_at": at.get(Prepared, at.get(Launched)),
        "finished_at": ended,
        "environment_setup": _time_span(at.get(Prepared), at.get(Launched)),
        "agent_execution": _time_span(at.get(Launched), at.get(Terminated)),
        "verifier": _time_span(at.get(Terminated), at.get(Assessed)),
    }


def _rewards(record: OutcomeRecord) -> dict[str, float] | None:
    """Only of a valid one: a missing reward is not 0."""
    closed = record.closed
    if closed is None or closed.outcome is not Outcome.VALID or closed.score is None:
        return None
    return {"reward": closed.score}


def _exception(record: OutcomeRecord, at: str | None) -> Json | None:
    ending, reason = record.terminated.ending, record.terminated.reason
    kind = ENDINGS.get(ending)
    if kind is None and record.closed is not None and record.closed.outcome is Outcome.EXCLUDED:
        kind, reason = UNRESOLVED, record.closed.reason or "no valid assessment"
    if kind is None:
        return None
    return {
        "exception_type": kind,
        "exception_message": reason,
        "exception_traceback": "",
        "occurred_at": at or _timestamp(0.0),
    }


def _timestamp(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, tz=UTC).isoformat()


def _time_span(start: str | None, end: str | None) -> Json | None:
    return None if start is None else {"started_at": start, "finished_at": end}


def _model(records: Sequence[CallRecord]) -> Json | None:
    opened = next((record for record in records if isinstance(record, LogOpened)), None)
    return None if opened is None else {"name": opened.model, "provider": SOURCE}


def _committed(records: Sequence[CallRecord]) -> list[CallClosed]:
    known = {record.call for record in records if isinstance(record, CallDelivered | CallEchoed)}
    return [record for record in records if isinstance(record, CallClosed) and record.call in known]


def _tokens(records: Sequence[CallRecord]) -> Json:
    sizes = _prompts(records)
    made = _committed(records)
    return {
        "n_input_tokens": sum(sizes.get(call.call, 0) for call in made),
        "n_output_tokens": sum(len(call.output) // 4 for call in made),
        "metadata": {"calls": len(made)},
    }


def _prompts(records: Sequence[CallRecord]) -> Mapping[int, int]:
    return {
        record.call: record.prompt_tokens for record in records if isinstance(record, CallOpened)
    }


def _trajectory(order: ExecutionSpec, records: Sequence[CallRecord]) -> Json:
    """What was asked and every committed reply of the main agent; results are in the tree alone."""
    sizes, model = _prompts(records), _model(records)
    steps: list[Json] = [{"step_id": 1, "source": "user", "message": order.task.instruction}]
    for reply in _committed(records):
        if reply.role != "main":
            continue
        step: Json = {
            "step_id": len(steps) + 1,
            "timestamp": _timestamp(reply.closed_at),
            "source": "agent",
            "message": reply.message.text,
            "metrics": {
                "prompt_tokens": sizes.get(reply.call),
                "completion_tokens": len(reply.output) // 4,
            },
        }
        if reply.message.calls:
            step["tool_calls"] = [
                {
                    "tool_call_id": call.id,
                    "function_name": call.name,
                    "arguments": _arguments(call.arguments),
                }
                for call in reply.message.calls
            ]
        steps.append(step)
    agent = {"name": Path(order.harness[0]).name if order.harness else SOURCE, "version": "unknown"}
    if model is not None:
        agent["model_name"] = model["name"]
    return {
        "schema_version": TRAJECTORY,
        "session_id": order.execution,
        "agent": agent,
        "steps": steps,
    }


def _arguments(text: str) -> Json:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    return found if isinstance(found, dict) else {"raw": text}


def _job(out: Path, results: Sequence[Json]) -> Json:
    starts = [result["started_at"] for result in results if result["started_at"] is not None]
    ends = [result["finished_at"] for result in results if result["finished_at"] is not None]
    failed = [result for result in results if result["exception_info"] is not None]
    by_reward: dict[str, list[str]] = {}
    for result in results:
        if result["verifier_result"] is not None:
            reward = result["verifier_result"]["rewards"]["reward"]
            by_reward.setdefault(repr(reward), []).append(result["trial_name"])
    scored = sum(len(names) for names in by_reward.values())
    mean = sum(float(reward) * len(names) for reward, names in by_reward.items()) / max(1, scored)
    stats = {
        "n_trials": scored,
        "n_errors": len(failed),
        "metrics": [{"mean": mean}] if scored else [],
        "reward_stats": {"reward": by_reward},
        "exception_stats": _named(failed),
    }
    return {
        "id": str(uuid5(NAMESPACE_URL, str(out))),
        "started_at": min(starts, default=_timestamp(0.0)),
        "finished_at": max(ends, default=None),
        "n_total_trials": len(results),
        "stats": {
            "n_completed_trials": len(results),
            "n_errored_trials": len(failed),
            "evals": {SOURCE: stats},
        },
    }


def _named(failed: Sequence[Json]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for result in failed:
        kind = result["exception_info"]["exception_type"]
        found.setdefault(kind, []).append(result["trial_name"])
    return found


def _plain(value: object) -> object:
    """What JSON has no word for: our own words for things are."""
    return getattr(value, "value", str(value))


def _write(path: Path, data: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    replace(path, (json.dumps(data, indent=2) + "\n").encode())
