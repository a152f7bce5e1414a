"""Values that are right one by one and cannot stand together."""

from collections.abc import Callable, Iterator, Mapping
from math import ceil, floor
from typing import Any

from gyre.config.run_sections import (
    CellsConfig,
    DeadlinesConfig,
    HarnessConfig,
    HeldOutEvalConfig,
    ScheduleConfig,
)
from gyre.config.sections import SERVERS, LossConfig, RouterConfig, TransportConfig

ENGINES = ("embedded", *SERVERS)
"""What a cell may serve with, beside what tests bring."""
TOLERANCE = 1e-9
"""A product of two floats this near a whole number is taken for it."""


def clashes(sections: Mapping[str, Any]) -> Iterator[str]:
    """A line for each, with its path; what depends on a table that is not there is not asked."""
    asked: dict[str, Callable[[Any], Iterator[str]]] = {
        "schedule": _schedule,
        "deadlines": _deadlines,
        "objective": _objective,
        "router": _router,
        "evaluation": _evaluation,
        "harness": _harness,
        "cells": _cells,
        "transport": _transport,
    }
    for name, clash in asked.items():
        if name in sections:
            yield from clash(sections[name])


def _cells(cells: CellsConfig) -> Iterator[str]:
    if cells.engine not in ENGINES and ":" not in cells.engine:
        known = ", ".join(ENGINES)
        yield f"cells.engine: expected {known} or MODULE:FUNCTION, found {cells.engine!r}"
    elif cells.engine not in SERVERS and cells.server is not None:
        yield f'cells.server: has no meaning when cells.engine is "{cells.engine}"'


def _transport(transport: TransportConfig) -> Iterator[str]:
    own = TransportConfig()
    for name in ("protocol", "devices"):
        if transport.kind != "mooncake" and getattr(transport, name) != getattr(own, name):
            yield f'transport.{name}: has no meaning when transport.kind is "{transport.kind}"'


def _schedule(schedule: ScheduleConfig) -> Iterator[str]:
    ways = ("extra_dispatch", "staleness", "depth")
    given = [name for name in ways if getattr(schedule, name) is not None]
    if len(given) > 1:
        paths = " and ".join(f"schedule.{name}" for name in given)
        yield f"{paths}: each decides what is dispatched; expected at most one of them"
    elif given == ["staleness"]:
        yield from _staleness(schedule)


def _staleness(schedule: ScheduleConfig) -> Iterator[str]:
    wanted, burst, batch = schedule.staleness, schedule.steps_per_burst, schedule.groups_per_batch
    if wanted is None or burst < 1 or batch < 1:
        return
    least = (burst - 1) / 2
    extra = (wanted - least) * batch
    if extra < -TOLERANCE:
        yield (
            f"schedule.staleness: expected at least {least}, which bursts of {burst} steps have "
            f"by themselves, found {wanted}; nearest: {least}"
        )
    elif abs(extra - round(extra)) > TOLERANCE * max(1.0, extra):
        near = [whole / batch + least for whole in (floor(extra), ceil(extra))]
        yield (
            f"schedule.staleness: expected {least} and a whole number of groups of a batch of "
            f"{batch}, found {wanted}; nearest: {near[0]} or {near[1]}"
        )


def _deadlines(deadlines: DeadlinesConfig) -> Iterator[str]:
    if deadlines.overall_s < deadlines.agent_s:
        yield (
            f"deadlines.overall_s: expected at least deadlines.agent_s, found {deadlines.overall_s}"
            f"; nearest: {deadlines.agent_s}"
        )


def _objective(objective: LossConfig) -> Iterator[str]:
    low, high = objective.bounds
    if low > high:
        name = "clip_high" if objective.clip_low is None else "clip_low"
        yield f"objective.{name}: expected a range of ratios, found {low} to {high}"


def _router(router: RouterConfig) -> Iterator[str]:
    if router.retry_most_s < router.retry_first_s:
        yield (
            f"router.retry_most_s: expected at least router.retry_first_s, found "
            f"{router.retry_most_s}; nearest: {router.retry_first_s}"
        )


def _evaluation(evaluation: HeldOutEvalConfig) -> Iterator[str]:
    if evaluation.slots and evaluation.tasks is None:
        yield (
            f"evaluation.tasks: missing; expected a table, because evaluation.slots is "
            f"{evaluation.slots}"
        )


def _harness(harness: HarnessConfig) -> Iterator[str]:
    if harness.kind == "command":
        if harness.argv is None:
            yield (
                "harness.argv: missing; expected a list of one or more texts, because "
                'harness.kind is "command"'
            )
        of_others = {"version": harness.version is not None, "args": bool(harness.args)}
    else:
        of_others = {"argv": harness.argv is not None}
    for name, is_given in of_others.items():
        if is_given:
            yield f'harness.{name}: has no meaning when harness.kind is "{harness.kind}"'
