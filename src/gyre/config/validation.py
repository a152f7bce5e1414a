"""Cross-field checks; cell layout against model and machines.

A cell has stages * contexts * shards ranks. Experts have none of their own: those of a layer are
dealt out to the ranks of its stage. Whether a layout fits, and whether the trainer computes it, are
two questions.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import ceil, floor, gcd
from typing import Any

from gyre.config.run_config import (
    CellsConfig,
    DeadlinesConfig,
    HarnessConfig,
    HeldOutEvalConfig,
    RunConfig,
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """What of a model is dealt out to ranks."""

    layers: int
    heads: int
    kv_heads: int
    columns: int
    """Of the MLP between its two matrices."""
    context_tokens: int
    """Most tokens that a text may have."""
    experts: int = 0


def misfits(config: RunConfig, sizes: Sizes, *, devices: int) -> Iterator[str]:
    """A line for each value that does not fit, with its path and the nearest that would.

    `devices` are the CUDA devices of this machine, which count where cells are started here.
    """
    yield from _by_model(config, sizes)
    yield from _by_nodes(config)
    yield from _by_devices(config, devices)
    yield from _by_transport(config, devices)


def untrained(config: RunConfig) -> Iterator[str]:
    """A line for each value that may fit and that the trainer of this kind does not compute.

    A trainer that is named in place of ours knows by itself what of a cell it computes.
    """
    cells, kind = config.cells, config.trainer.kind
    if cells.trainer is not None:
        return
    for name, found in (("experts", cells.experts), ("contexts", cells.contexts)):
        if found > 1:
            yield (
                f'cells.{name}: expected 1, the one value that trainer.kind = "{kind}" trains '
                f"with, found {found}; nearest: 1"
            )


def unweighable(config: RunConfig) -> Iterator[str]:
    """A line for each value by which tokens are drawn otherwise than a trainer weighs them.

    A trainer has the probability of a token among all others at one temperature (T28).

    Tokens that were drawn otherwise have ratios that are not 1 before anything has changed, so that
    whole executions would be left out, or none of a ratio is a number.
    """
    sampling = config.sampling
    wanted = "in a run that trains, because both sides of a ratio are of one distribution"
    if sampling.temperature == 0:
        yield f"sampling.temperature: expected above 0 {wanted}, found 0"
    if sampling.top_p != 1:
        yield f"sampling.top_p: expected 1 {wanted}, found {sampling.top_p}; nearest: 1"
    if sampling.top_k is not None:
        yield f"sampling.top_k: expected none {wanted}, found {sampling.top_k}"
    if config.proxy.honour_sampling:
        yield f"proxy.honour_sampling: expected false {wanted}, found true"


def _by_model(config: RunConfig, sizes: Sizes) -> Iterator[str]:
    cells = config.cells
    if cells.stages > sizes.layers:
        yield (
            f"cells.stages: expected at most the model's {sizes.layers} layers, found "
            f"{cells.stages}; nearest: {sizes.layers}"
        )
    whole = gcd(sizes.heads, sizes.kv_heads, sizes.columns)
    if whole % cells.shards:
        yield (
            f"cells.shards: expected a divisor of the model's {sizes.heads} attention heads, "
            f"{sizes.kv_heads} key-value heads and {sizes.columns} MLP columns, found "
            f"{cells.shards}; nearest: {_nearest(cells.shards, _divisors(whole))}"
        )
    ranks = cells.shards * cells.contexts
    whole = gcd(sizes.experts, ranks) if sizes.experts else 1
    if whole % cells.experts:
        has = f"{sizes.experts} experts" if sizes.experts else "no experts"
        yield (
            f"cells.experts: expected a divisor of the ranks of a stage, {ranks}, and of the "
            f"experts of a model that has {has}, found {cells.experts}; "
            f"nearest: {_nearest(cells.experts, _divisors(whole))}"
        )
    # A rank has one part from the front of a text and one from its back, which see as much
    # together as any other two.
    if cells.contexts > 1 and sizes.context_tokens % (2 * cells.contexts):
        fitting = [1] if sizes.context_tokens % 2 else _divisors(sizes.context_tokens // 2)
        near = _nearest(cells.contexts, fitting)
        yield (
            f"cells.contexts: expected two equal parts of the model's {sizes.context_tokens} "
            f"tokens for each, found {cells.contexts}; nearest: {near}"
        )


def _by_nodes(config: RunConfig) -> Iterator[str]:
    ranks, nodes = config.cells.ranks, config.cluster.cell_nodes
    if config.cluster.kind == "local" and nodes > 1:
        yield (
            f'cluster.cell_nodes: expected 1 where cluster.kind is "local", found {nodes}; '
            "nearest: 1"
        )
    elif ranks % nodes:
        yield (
            f"cluster.cell_nodes: expected a divisor of the {ranks} ranks of a cell, which are "
            f"dealt out evenly, found {nodes}; nearest: {_nearest(nodes, _divisors(ranks))}"
        )


def _by_devices(config: RunConfig, devices: int) -> Iterator[str]:
    asked, ranks = config.model.device, config.cells.ranks
    per_node = -(-ranks // config.cluster.cell_nodes)
    if asked == "cpu":
        return
    if config.cluster.kind == "ray":
        kept = config.cluster.cell_gpus
        # A part of a GPU is one that is shared, by a cell that is one rank there.
        if kept and per_node > max(1.0, kept):
            yield (
                f"cluster.cell_gpus: expected at least {per_node}, one for each rank of a cell on "
                f"a node, found {kept:g}; nearest: {per_node}"
            )
    elif devices == 0 and asked is not None:
        yield f"model.device: expected cpu, found {asked!r} and no CUDA device; nearest: 'cpu'"
    elif asked is not None and _number(asked) >= devices:
        yield (
            f"model.device: expected one of {devices} CUDA devices, found {asked!r}; "
            f"nearest: 'cuda:{devices - 1}'"
        )
    elif devices and ranks > devices:
        yield (
            f"cells.stages, cells.shards and cells.contexts: expected at most {devices} ranks of a "
            f"cell, one for each CUDA device, found {ranks}"
        )


def _number(device: str) -> int:
    """Of a device that is named by it, as in cuda:1."""
    number = device.partition(":")[2]
    return int(number) if number.isdecimal() else 0


def _divisors(whole: int) -> Iterator[int]:
    return (number for number in range(1, whole + 1) if whole % number == 0)


def _nearest(found: int, fitting: Iterable[int]) -> int:
    return min(fitting, key=lambda one: (abs(one - found), one))


def _by_transport(config: RunConfig, devices: int) -> Iterator[str]:
    if config.transport.kind != "cuda":
        return
    cells, asked = config.cells, config.model.device or "auto"
    if config.cluster.kind != "local":
        yield (
            'transport.kind: expected "shared", "tcp" or "mooncake" where cluster.kind is '
            f'"{config.cluster.kind}", found "cuda", which is for cells of one machine; '
            'nearest: "tcp"'
        )
    elif asked.partition(":")[0] not in ("auto", "cuda") or not devices:
        has = f'model.device = "{asked}" and {devices} CUDA devices'
        yield (
            f'transport.kind: expected cells on CUDA devices for "cuda", found {has}; '
            'nearest: "shared"'
        )
    elif cells.engine in SERVERS and (others := _off_device(config)) is not None:
        yield (
            f'transport.kind: expected "shared", "tcp" or "mooncake" where cells.engine is '
            f'"{cells.engine}" and {others}, found "cuda", which is for cells whose own weights '
            'are on a CUDA device; nearest: "shared"'
        )


def _off_device(config: RunConfig) -> str | None:
    """Why a cell with a server has no weights of its own on the device; None if it has."""
    if config.cells.standalone:
        return "cells.standalone is not empty"
    if config.cells.ranks > 1:
        return f"a cell has {config.cells.ranks} ranks"
    return 'trainer.kind is "megatron"' if config.trainer.kind == "megatron" else None
