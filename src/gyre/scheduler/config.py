"""The scheduler's settings: sizes and policies of a run, checked before it starts."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import ceil, floor, isfinite

from gyre.scheduler.policies import (
    TOLERANCE,
    Async,
    Boundary,
    Colocate,
    Continuous,
    Dispatch,
    Elastic,
    LaunchOrder,
    OldestFirst,
    Placement,
    Resumable,
)
from gyre.types.errors import ConfigError

SCHEDULE_FIELDS = (
    "groups_per_batch",
    "executions_per_group",
    "steps_per_burst",
    "steps",
    "surplus",
    "supply_fraction",
    "supply_dwell_s",
    "rescue_s",
    "min_valid",
    "max_void",
    "evaluation_holds_slot",
    "endless_dispatch",
    "overcommit",
)
"""Fields that the schedule of a run file or of a scenario has under the same names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """What the scheduler is built with; refused with a line for every mistake (SPEC 10)."""

    groups_per_batch: int
    """B."""
    executions_per_group: int
    """N."""
    num_cells: int
    """K."""
    cell_capacity: int
    """C_e: executions a cell serves at once."""
    standalone_capacities: tuple[int, ...] = ()
    """Executions each standalone engine serves at once; their sum is C_s."""
    steps_per_burst: int = 1
    """mu."""
    steps: int | None = None
    """Updates of the whole run, a multiple of mu; None for a run without an end."""
    dispatch: Dispatch = field(default_factory=Boundary)
    placement: Placement = field(default_factory=Elastic)
    launch_order: LaunchOrder = field(default_factory=OldestFirst)
    surplus: int = 0
    """Executions dispatched per group above N, cancelled at its N-th counted reward (SPEC 6.5)."""
    supply_fraction: float = 0.1
    """rho_min: the part of a batch that is ready before a cell enters training for it."""
    supply_dwell_s: float = 5.0
    """tau: for how long it has been so."""
    rescue_s: float = 60.0
    """How long work may wait with no engine able to serve before a training cell goes home."""
    min_valid: int = 2
    """Rewards a group needs so that it is not void; placeholders count."""
    max_void: float = 0.5
    """The run stops when a larger part of the last 2 B closed groups is void."""
    evaluation_slots: int = 0
    """Held-out evaluation executions at once (SPEC 6.6)."""
    evaluation_holds_slot: bool = False
    """A terminated execution keeps its slot until it is closed (SPEC 1.3)."""
    endless_dispatch: bool = False
    """Groups are admitted as if the run had no end (SPEC 1.6)."""
    overcommit: float = 1.0
    """While every cell is home, an engine may hold this many times its capacity in executions,
    because most of them wait for a tool rather than for a call."""

    def __post_init__(self) -> None:
        if wrong := [*_sizes(self), *_fractions(self), *_combinations(self)]:
            raise ConfigError("\n".join(wrong))

    @property
    def group_size(self) -> int:
        """N': executions of a group with its surplus."""
        return self.executions_per_group + self.surplus

    @property
    def standalone_capacity(self) -> int:
        """C_s."""
        return sum(self.standalone_capacities)

    @property
    def burst_groups(self) -> int:
        """mu * B."""
        return self.steps_per_burst * self.groups_per_batch

    @property
    def supply_groups(self) -> int:
        """The least whole number of groups that is rho_min * B or more."""
        return ceil(self.supply_fraction * self.groups_per_batch - TOLERANCE)

    @property
    def mean_staleness(self) -> float | None:
        """phi + (mu - 1) / 2 (eq:mean-version-diff); None where it depends on the ready groups."""
        match self.dispatch:
            case Boundary(extra_dispatch=extra):
                return extra + (self.steps_per_burst - 1) / 2
            case Continuous():
                return None


def _sizes(shape: SchedulerConfig) -> Iterator[str]:
    least = {
        "groups_per_batch": (shape.groups_per_batch, 1),
        "executions_per_group": (shape.executions_per_group, 2),
        "num_cells": (shape.num_cells, 1),
        "cell_capacity": (shape.cell_capacity, 1),
        "steps_per_burst": (shape.steps_per_burst, 1),
        "surplus": (shape.surplus, 0),
        "min_valid": (shape.min_valid, 1),
        "evaluation_slots": (shape.evaluation_slots, 0),
    }
    for name, (found, minimum) in least.items():
        if found < minimum:
            yield f"{name}: {found} is too few; the least is {minimum}"
    for number, capacity in enumerate(shape.standalone_capacities):
        if capacity < 1:
            where = f"standalone_capacities[{number}]"
            yield f"{where}: {capacity} is no capacity; leave the engine out or give it at least 1"
    if shape.min_valid > shape.executions_per_group:
        yield (
            f"min_valid: {shape.min_valid} rewards cannot come from a group of "
            f"{shape.executions_per_group}; the most is {shape.executions_per_group}"
        )
    if shape.steps is not None and shape.steps_per_burst >= 1:
        burst = shape.steps_per_burst
        if shape.steps < 1 or shape.steps % burst:
            near = {
                max(burst, shape.steps // burst * burst),
                max(1, ceil(shape.steps / burst)) * burst,
            }
            yield (
                f"steps: {shape.steps} is not a whole number of bursts of {burst}; "
                f"nearest: {_alternatives(near)}"
            )


def _fractions(shape: SchedulerConfig) -> Iterator[str]:
    if not 0 < shape.supply_fraction <= 1:
        yield (
            f"supply_fraction: {shape.supply_fraction} is outside (0, 1]; "
            f"nearest: {1.0 if shape.supply_fraction > 1 else 0.01}"
        )
    if not 0 <= shape.max_void <= 1:
        yield (
            f"max_void: {shape.max_void} is no part of a whole; "
            f"nearest: {1.0 if shape.max_void > 1 else 0.0}"
        )
    if not 0 <= shape.supply_dwell_s < float("inf"):
        yield f"supply_dwell_s: {shape.supply_dwell_s} is no time to wait; the least is 0"
    if not 0 < shape.rescue_s < float("inf"):
        yield f"rescue_s: {shape.rescue_s} is no time to wait; give some seconds, such as 60"
    if not 1 <= shape.overcommit < float("inf"):
        yield f"overcommit: {shape.overcommit} would leave capacity unused; the least is 1.0"
    if isinstance(shape.dispatch, Boundary) and shape.groups_per_batch >= 1:
        yield from _extra(shape.dispatch.extra_dispatch, shape.groups_per_batch)


def _extra(extra: float, batch: int) -> Iterator[str]:
    name = "dispatch.extra_dispatch"
    if not isfinite(extra * batch) or extra < 0:
        yield f"{name}: {extra} is no depth; the least is 0"
    elif abs(extra * batch - round(extra * batch)) > TOLERANCE * max(1.0, extra * batch):
        near = {floor(extra * batch) / batch, ceil(extra * batch) / batch}
        yield (
            f"{name}: {extra} times a batch of {batch} is not a whole number of groups; "
            f"nearest: {_alternatives(near)}"
        )


def _combinations(shape: SchedulerConfig) -> Iterator[str]:
    if isinstance(shape.placement, Async) and not shape.standalone_capacities:
        yield (
            "standalone_capacities: none, and the cells of Async only train, so nobody serves; "
            f"give at least one engine, such as [{max(1, shape.cell_capacity)}]"
        )
    if isinstance(shape.placement, Resumable) and isinstance(shape.dispatch, Boundary):
        yield "placement: Resumable goes with continuous dispatch; with Boundary use Colocate"
    if isinstance(shape.placement, Resumable) and shape.placement.streaming:
        yield "placement.streaming: Resumable rolls nothing out while it trains; the value is False"
    if not isinstance(shape.dispatch, Continuous):
        return
    if shape.dispatch.depth < 1:
        yield f"dispatch.depth: {shape.dispatch.depth} groups dispatch nothing; the least is 1"
    if isinstance(shape.placement, Colocate) and not isinstance(shape.placement, Resumable):
        yield "dispatch: Colocate never drains under Continuous; use Boundary, or Resumable"
    if isinstance(shape.placement, Elastic):
        yield from _depth(shape, shape.dispatch.depth)


def _depth(shape: SchedulerConfig, depth: int) -> Iterator[str]:
    room = shape.standalone_capacity + (shape.num_cells - 1) * shape.cell_capacity
    if shape.group_size >= 1 and depth * shape.group_size > room:
        most = room // shape.group_size
        change = f"the most is {most}" if most else "add cells or standalone engines"
        yield (
            f"dispatch.depth: {depth} groups of {shape.group_size} need {depth * shape.group_size} "
            f"slots and {room} are left when the core trains; {change}"
        )


def _alternatives(values: set[float] | set[int]) -> str:
    return " or ".join(str(value) for value in sorted(values))
