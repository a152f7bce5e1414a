"""The steps of an execution in its trial: a folder for each, and what Harbor's result says."""

import json
import shutil
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gyre.rewards.command import OUTPUT_FILE as EVALUATION_FILE
from gyre.rollout.facts import FactEntry
from gyre.rollout.spec import ExecutionSpec
from gyre.rollout.supervisor import OUTPUT_FILE, STEPS, folder_of
from gyre.storage.durable import replace
from gyre.types.outcomes import Assessed, Launched, StepAssessed, StepEnded, StepStarted, Terminated

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
    for part in ("agent", "verifier", "artifacts"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    for source, target in (
        (OUTPUT_FILE, "agent/output.txt"),
        (EVALUATION_FILE, "verifier/test-stdout.txt"),
    ):
        if (kept / source).is_file():
            shutil.copyfile(kept / source, folder / target)
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


def _span(first: FactEntry, last: FactEntry) -> Json:
    return {"started_at": _said_at(first), "finished_at": _said_at(last)}


def _said_at(entry: FactEntry) -> str:
    return datetime.fromtimestamp(entry.at, tz=UTC).isoformat()
