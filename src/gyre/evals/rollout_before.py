"""What an earlier rollout left in its folder: what it was asked for, and whom it had begun.

Rule 1: a rollout goes on only with what it began with, or its numbers would be of two things.
"""

import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec

from gyre.evals.plan import ASKED_FILE, EvalSpec
from gyre.storage.durable import replace
from gyre.types.errors import ConfigError
from gyre.types.ids import ExecutionId

FORMAT = 1
MAY_CHANGE = ("run", "schedule", "cells", "proxy", "router", "checkpoint", "trackers")
"""Tables about where and how fast, not about what."""
NAME = re.compile(r"g(\d{5,})(?:\.(\d+))?-(\d{2,})")
"""Group, how often it was begun anew, and member."""

Slot = tuple[int, int]
"""Task and member."""


def slot_of(name: str) -> Slot | None:
    """None for what is no execution of a rollout."""
    found = NAME.fullmatch(name)
    return None if found is None else (int(found[1]), int(found[3]))


def begun(attempts: Path) -> dict[Slot, ExecutionId]:
    """Executions that have a folder; of one that was begun anew, the last."""
    newest: dict[Slot, ExecutionId] = {}
    for path in attempts.iterdir() if attempts.is_dir() else ():
        slot = slot_of(path.name)
        if slot is not None and _again(path.name) >= _again(newest.get(slot, path.name)):
            newest[slot] = ExecutionId(path.name)
    return newest


def _again(name: str) -> int:
    found = NAME.fullmatch(name)
    assert found is not None
    return int(found[2] or 0)


def remember(plan: EvalSpec, tasks: list[str]) -> None:
    """The folder says what it is of; ConfigError if that is something else already."""
    path = plan.folder / ASKED_FILE
    wanted = _asked(plan, tasks)
    if not path.exists():
        replace(path, msgspec.json.encode(wanted))
        return
    try:
        known = msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except (OSError, msgspec.MsgspecError) as error:
        message = f"{path}: expected what a rollout was asked for: {error}"
        raise ConfigError(message) from error
    differ = [name for name in sorted({*wanted, *known}) if wanted.get(name) != known.get(name)]
    if differ:
        message = (
            f"--run {plan.folder}: holds a rollout that was asked for something else; "
            f"these differ: {', '.join(differ)}"
        )
        raise ConfigError(message)


def _asked(plan: EvalSpec, tasks: list[str]) -> dict[str, Any]:
    """As it reads back from JSON."""
    tables = {name: table for name, table in asdict(plan.config).items() if name not in MAY_CHANGE}
    asked = {
        "format": FORMAT,
        "executions of a task": plan.members,
        "names of tasks": tasks,
        "weights": asdict(plan.weights),
        **tables,
    }
    read: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(asked))
    return read
