"""Engines that hold calls, so that some are in flight whenever a process of their run is struck.

An agent says with each call but its first how many blows it waits for (tests/chaos/held_agent.py),
and whoever strikes writes down how many there were.
"""

import asyncio
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gyre.config.sections import EngineConfig
from gyre.model.network import Network
from gyre.testing import emulated_cell, light_agent
from gyre.testing.timed_engine import TimedEngine
from gyre.testing.timed_script import TimedCall

ROOT = Path(__file__).parents[2]
AGENT = Path(__file__).with_name("held_agent.py")
_WAITS = re.compile(r"waits for ([0-9]+) blows")
_LOOK_S = 0.02


def held_tables(blows: Path, *, most: int) -> dict[str, dict[str, Any]]:
    """What a run has over that of `emulated_cell.tables` so that its calls wait for blows."""
    write_blows(blows, 0)
    program = ["python3", "-S", "-E", str(AGENT), light_agent.__file__, str(most)]
    return {
        "cells": {"engine": f"tests.chaos.held_calls:engine?blows={blows}"},
        "harness": {"argv": [*program, "{instruction}"]},
    }


def variables() -> dict[str, str]:
    """Of processes that find the engine."""
    return {**os.environ, "PYTHONPATH": str(ROOT)}


def write_blows(path: Path, count: int) -> None:
    """How many there were, whole at any moment."""
    beside = path.with_suffix(".new")
    beside.write_text(str(count))
    beside.rename(path)


def engine(
    network: Network,
    *,
    name: str,
    section: EngineConfig,
    folder: Path,
    options: Mapping[str, str],
) -> TimedEngine:
    """The emulated engine; a call says nothing before `blows=FILE` has what it waits for."""
    rest = dict(options)
    path = Path(rest.pop("blows"))
    made = emulated_cell.engine(network, name=name, section=section, folder=folder, options=rest)
    due = made._due

    async def due_when_struck(one: TimedCall) -> None:
        prompt = one.request.call.tokens[: one.request.num_prompt]
        said = _WAITS.findall(made._coder.decode(prompt.tolist()))
        needed = int(said[-1]) if said else 0
        while needed > int(path.read_text()) and not (one.is_over or made._closed):
            await asyncio.sleep(_LOOK_S)
        await due(one)

    made._due = due_when_struck  # type: ignore[method-assign]
    return made
