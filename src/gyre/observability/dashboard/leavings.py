"""What an execution left behind, as plain data: task, facts, assessments, output, changed files."""

import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from gyre.observability.dashboard.differences import differences
from gyre.rewards.command import OUTPUT_FILE as EVALUATION_FILE
from gyre.rollout import facts, outcome
from gyre.rollout.spec import ORDER_FILE, ExecutionSpec, read_order
from gyre.rollout.supervisor import OUTPUT_FILE
from gyre.types.outcomes import Assessed, Assessment, OutcomeRecord, StepAssessed

FROZEN = "frozen"
MOST_BYTES = 64 * 1024
"""Of what a program printed, its end: that is where it says what became of it."""

Plain = dict[str, Any]


def leavings(attempt: Path) -> Plain | None:
    """Of an execution's folder, as far as it has come; None where there is none."""
    if not (attempt / ORDER_FILE).is_file():
        return None
    order = read_order(attempt / ORDER_FILE)
    entries = facts.read(attempt)
    return {
        "task": order.task.id,
        "instruction": order.task.instruction,
        "harness": list(order.harness),
        "agent_s": order.agent_s,
        "overall_s": order.overall_s,
        "facts": [{"at": one.at, "fact": type(one.fact).__name__} for one in entries],
        **_outcome(outcome.read(attempt)),
        "assessments": _assessments(entries),
        "output": _end_of(attempt / OUTPUT_FILE),
        "evaluation": _end_of(attempt / EVALUATION_FILE),
        "workspace": _workspace(order, attempt),
    }


def _outcome(record: OutcomeRecord | None) -> Plain:
    """How it ended and what it closed as; nothing but None while it runs."""
    closed = None if record is None else record.closed
    ended = None if record is None else record.terminated
    return {
        "ending": None if ended is None else ended.ending.value,
        "ending_reason": None if ended is None else ended.reason,
        "elapsed_s": None if ended is None else ended.elapsed_s,
        "outcome": None if closed is None else closed.outcome.value,
        "outcome_reason": None if closed is None else closed.reason,
        "score": None if closed is None else closed.score,
    }


def _assessments(entries: Sequence[facts.FactEntry]) -> list[Plain]:
    """Every attempt in order; those of a step that others may follow say which."""
    found = []
    for entry in entries:
        match entry.fact:
            case StepAssessed(step=step, assessment=one):
                found.append({"at": entry.at, "step": step, **_assessment(one)})
            case Assessed(assessment=one):
                found.append({"at": entry.at, "step": None, **_assessment(one)})
    return found


def _assessment(one: Assessment) -> Plain:
    return {**asdict(one), "status": one.status.value}


def _workspace(order: ExecutionSpec, attempt: Path) -> Plain | None:
    """What became of the task's files; None where nothing is kept."""
    frozen = attempt / FROZEN
    if frozen.is_symlink() or not frozen.is_dir():
        return None
    before = None if order.task.files is None else Path(order.task.files)
    is_known = before is None or before.is_dir()
    found = differences(before if is_known else None, frozen)
    return {**asdict(found), "is_begin_known": is_known}


def _end_of(path: Path) -> Plain | None:
    """The last of what was printed, as text; None where nothing was kept."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - MOST_BYTES))
            data = file.read(MOST_BYTES)
    except FileNotFoundError:
        return None
    return {"text": data.decode(errors="replace"), "left_out_bytes": max(0, size - MOST_BYTES)}
