"""The same work on the same machines under each placement, at one mean staleness."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from gyre.scheduler.config import SchedulerConfig
from gyre.scheduler.dispatch import Boundary
from gyre.scheduler.placements import Async, Colocate, Elastic, Placement
from gyre.simulator.scenario import Scenario
from gyre.types.errors import ConfigError


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
    given = _name(scenario.shape.placement)
    found: dict[str, Scenario | UnfitPlacement] = {}
    for name, make in makers.items():
        try:
            found[name] = scenario if name == given else make(scenario)
        except ConfigError as error:
            found[name] = UnfitPlacement(name=name, reason="; ".join(str(error).splitlines()))
    return found


def _name(placement: Placement) -> str:
    return type(placement).__name__.lower()


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
    joined = sum(one == shape.cell_capacity for one in alone)
    return replace(
        shape,
        num_cells=shape.num_cells + joined,
        standalone_capacities=tuple(one for one in alone if one != shape.cell_capacity),
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
    yield _name(shape.placement) + streams
    match shape.dispatch:
        case Boundary(extra_dispatch=extra):
            yield f"phi {extra:g}"
        case other:
            yield f"depth {other.depth}"
    yield f"mu {shape.steps_per_burst}"
