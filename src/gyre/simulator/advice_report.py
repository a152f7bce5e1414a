"""Advice as lines for people, and as plain values for programs."""

import textwrap
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from gyre.simulator.advice import Advice, Option
from gyre.simulator.scenario import Scenario

FORMAT = 1
WIDTH = 80
HEADING = (
    "",
    "cells",
    "nodes",
    "capacity",
    "phi",
    "mu",
    "step h",
    "bound h",
    "idle",
    "mean",
    "oldest",
)


def lines(scenario: Scenario, advice: Advice, notes: Sequence[str]) -> list[str]:
    """A table with a star at the option to use, and why."""
    shape = scenario.shape
    best = advice.best
    rows = [HEADING, *(_row(one, is_best=one is best) for one in advice.options)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    use = (
        f"use phi {best.extra_dispatch:g} and mu {best.steps_per_burst} on "
        f"{best.layout.num_cells} cells: {advice.reason}"
    )
    return [
        f"mean staleness {advice.staleness:g}, {shape.groups_per_batch} groups of "
        f"{shape.executions_per_group} executions a step",
        *notes,
        "",
        *("  ".join(map(str.rjust, row, widths)).rstrip() for row in rows),
        "",
        *textwrap.wrap(use, WIDTH),
    ]


def as_json(advice: Advice, notes: Sequence[str]) -> dict[str, Any]:
    """The same as plain values."""
    return {
        "format": FORMAT,
        "staleness": advice.staleness,
        "options": [asdict(one) | {"best": one is advice.best} for one in advice.options],
        "reason": advice.reason,
        "notes": list(notes),
    }


def _row(one: Option, *, is_best: bool) -> tuple[str, ...]:
    return (
        "*" if is_best else "",
        f"{one.layout.num_cells}",
        f"{one.layout.nodes_per_cell:g}",
        f"{one.layout.cell_capacity}",
        f"{one.extra_dispatch:g}",
        f"{one.steps_per_burst}",
        f"{one.step_h:.2f}",
        f"{one.bound_h:.2f}",
        f"{one.idle_share:.0%}",
        f"{one.staleness:.2f}",
        f"{one.oldest}",
    )
