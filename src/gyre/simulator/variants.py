"""The same work under other placements, and under policies beyond the paper.

Rule 1: none of these policies changes the dispatch, so mean staleness stays what it was.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias

from gyre.scheduler.config import SchedulerConfig
from gyre.scheduler.policies import Async, Boundary, Colocate, Elastic, LongestFirst
from gyre.simulator.scenario import Estimates, Scenario
from gyre.simulator.timeline import pace, placement_name
from gyre.simulator.workload import ByGroups, ByTokens, Decode
from gyre.types.errors import ConfigError

Change: TypeAlias = Callable[[Scenario], Scenario]


def overcommitted(scenario: Scenario, *, factor: float) -> Scenario:
    """Engines hold more executions than they are meant for while no cell trains."""
    return replace(scenario, shape=replace(scenario.shape, overcommit=factor))


def longest_first(scenario: Scenario, *, sigma: float) -> Scenario:
    """Queries that seem long launch first; `sigma` is the error of the logarithm of a guess."""
    shape = replace(scenario.shape, launch_order=LongestFirst())
    return replace(scenario, shape=shape, estimates=Estimates(sigma=sigma))


def cheaper_training(scenario: Scenario, *, factor: float) -> Scenario:
    """Training is that many times as fast, because shared prefixes are computed once (SPEC 8.5)."""
    training: ByGroups | ByTokens
    match scenario.costs.training:
        case ByGroups(groups_per_node_hour=rate):
            training = ByGroups(groups_per_node_hour=rate * factor)
        case ByTokens(tokens_per_node_s=rate):
            training = ByTokens(tokens_per_node_s=rate * factor)
    return replace(scenario, costs=replace(scenario.costs, training=training))


def slots_released(scenario: Scenario) -> Scenario:
    """An execution gives its slot back when its harness ends, not when it is assessed."""
    return replace(scenario, shape=replace(scenario.shape, evaluation_holds_slot=False))


def decode_bound(scenario: Scenario, *, share: float) -> Scenario:
    """The same work where that share of it slows down as an engine fills: for sensitivity."""
    workload = replace(scenario.workload, decode=Decode(share=share))
    return replace(scenario, workload=workload)


def together(*changes: Change) -> Change:
    """All of them, in order."""

    def change(scenario: Scenario) -> Scenario:
        for one in changes:
            scenario = one(scenario)
        return scenario

    return change


ESTIMATE_SIGMA = 0.3
"""A guess that is off by a third, as from a query's earlier executions."""
SHARED_PREFIX = 1.24
"""Speed of training on a tree of five trajectories over its rows, with the layers of a large model
(benchmarks/results, gpu-trees)."""

_LONGEST = partial(longest_first, sigma=ESTIMATE_SIGMA)
_QUARTER_MORE = partial(overcommitted, factor=1.25)
_HALF_MORE = partial(overcommitted, factor=1.5)
_SHARED = partial(cheaper_training, factor=SHARED_PREFIX)

POLICIES: dict[str, Change] = {
    "as published": together(),
    "overcommit 1.25": _QUARTER_MORE,
    "overcommit 1.5": _HALF_MORE,
    "longest first": _LONGEST,
    "shared prefixes": _SHARED,
    "slots released": slots_released,
    "longest first, shared prefixes": together(_LONGEST, _SHARED),
    "overcommit 1.25, longest first": together(_QUARTER_MORE, _LONGEST),
    "overcommit 1.25, longest first, shared prefixes": together(_QUARTER_MORE, _LONGEST, _SHARED),
    "overcommit 1.5, longest first": together(_HALF_MORE, _LONGEST),
    "overcommit 1.5, longest first, shared prefixes": together(_HALF_MORE, _LONGEST, _SHARED),
    "all of these": together(_HALF_MORE, _LONGEST, _SHARED, slots_released),
}
"""Single changes and combinations, by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnfitPlacement:
    """A placement that these machines or this dispatch cannot have."""

    name: str
    reason: str


def placements(scenario: Scenario) -> dict[str, Scenario | UnfitPlacement]:
    """Elastic, Async and Colocate; the one that the scenario has stays as it is.

    A baseline has the pace that suits it, as in the paper: Async publishes after every step, and
    Colocate dispatches exactly a burst (sec:end-to-end).
    """
    makers = {"elastic": _elastic, "async": _async, "colocate": _colocate}
    given = placement_name(scenario.shape.placement)
    found: dict[str, Scenario | UnfitPlacement] = {}
    for name, make in makers.items():
        try:
            found[name] = scenario if name == given else make(scenario)
        except ConfigError as error:
            found[name] = UnfitPlacement(name=name, reason="; ".join(str(error).splitlines()))
    return found


def _elastic(scenario: Scenario) -> Scenario:
    return replace(scenario, shape=replace(_pooled(scenario.shape), placement=Elastic()))


def _async(scenario: Scenario) -> Scenario:
    """Half of the cells only serve, the rest only train."""
    shape = scenario.shape
    moved = shape.num_cells // 2
    alone = (*shape.standalone_capacities, *(shape.cell_capacity,) * moved)
    split = replace(
        _at_pace(shape, steps_per_burst=1),
        num_cells=shape.num_cells - moved,
        standalone_capacities=alone,
        placement=Async(streaming=False),
    )
    return replace(scenario, shape=split)


def _colocate(scenario: Scenario) -> Scenario:
    shape = _pooled(scenario.shape)
    staleness = shape.mean_staleness
    if staleness is not None and (2 * staleness).is_integer():
        shape = _at_pace(shape, steps_per_burst=round(2 * staleness) + 1)
    return replace(scenario, shape=replace(shape, placement=Colocate(streaming=False)))


def _pooled(shape: SchedulerConfig) -> SchedulerConfig:
    """The machines of a fixed split as cells, as far as they are of a cell's size."""
    if not isinstance(shape.placement, Async):
        return shape
    alone = shape.standalone_capacities
    joined = sum(capacity == shape.cell_capacity for capacity in alone)
    return replace(
        shape,
        num_cells=shape.num_cells + joined,
        standalone_capacities=tuple(
            capacity for capacity in alone if capacity != shape.cell_capacity
        ),
        placement=Elastic(),
    )


def _at_pace(shape: SchedulerConfig, *, steps_per_burst: int) -> SchedulerConfig:
    """The same mean staleness with other bursts, or the shape as it is where that cannot be."""
    if shape.mean_staleness is None:
        return shape
    extra = shape.mean_staleness - (steps_per_burst - 1) / 2
    try:
        return replace(
            shape, steps_per_burst=steps_per_burst, dispatch=Boundary(extra_dispatch=extra)
        )
    except ConfigError:
        return shape


def described(shape: SchedulerConfig) -> Iterator[str]:
    """Placement and pace in a few words each."""
    streams = "" if shape.placement.streaming else ", whole bursts"
    yield placement_name(shape.placement) + streams
    yield pace(shape)
    yield f"mu {shape.steps_per_burst}"
