"""A recorded run's work once more under each placement, simulated on the same machines."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from gyre.journal.journal import JournalContents
from gyre.observability.terminal.text import MINUTE_S
from gyre.scheduler.messages import StopReason
from gyre.simulator.from_journal import recorded
from gyre.simulator.scenario import Scenario
from gyre.simulator.variants import UnfitPlacement, described, placements
from gyre.simulator.workload import HOUR_S
from gyre.simulator.world import run
from gyre.types.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedPlacement:
    """The recorded work under one placement."""

    placement: str
    how: str
    """Pace and split in a few words, or why there are no minutes."""
    steps: int | None = None
    """Updates that were simulated."""
    minutes: float | None = None
    """To the last of them; None where it could not be or did not finish."""
    staleness: float | None = None


def minutes_of(rows: Sequence[SimulatedPlacement], placement: str) -> float | None:
    return next((row.minutes for row in rows if row.placement == placement), None)


def steps_of(rows: Sequence[SimulatedPlacement]) -> int | None:
    """Updates that were simulated."""
    return next((row.steps for row in rows if row.steps is not None), None)


def compared(reading: JournalContents) -> tuple[SimulatedPlacement, ...]:
    """Elastic first, then the best split of Async, then Colocate; a row without minutes says why.

    All keep the mean staleness of the run where their bursts can.
    """
    try:
        given = recorded(reading).scenario
    except ConfigError as error:
        why = str(error).removeprefix(f"{reading.path}: ")
        return (SimulatedPlacement(placement="elastic", how=why),)
    found = placements(given)
    rows = [_simulated("elastic", found["elastic"])]
    rows.append(_best_split(found["elastic"]))
    rows.append(_simulated("colocate", found["colocate"]))
    return tuple(rows)


def _simulated(name: str, asked: Scenario | UnfitPlacement, *, how: str = "") -> SimulatedPlacement:
    if isinstance(asked, UnfitPlacement):
        return SimulatedPlacement(placement=name, how=asked.reason)
    record = run(asked)
    steps = asked.shape.steps
    _, *pace = described(asked.shape)
    shape = "; ".join([*([how] if how else []), ", ".join(pace)])
    if record.stopped is not StopReason.FINISHED:
        reason = "nothing left to wait for" if record.stopped is None else record.stopped.value
        return SimulatedPlacement(
            placement=name, how=f"{shape}; did not finish: {reason}", steps=steps
        )
    return SimulatedPlacement(
        placement=name,
        how=shape,
        steps=steps,
        minutes=record.hours * HOUR_S / MINUTE_S,
        staleness=record.staleness.mean,
    )


def _best_split(elastic: Scenario | UnfitPlacement) -> SimulatedPlacement:
    """The soonest of all ways to have some cells only train and the others only serve."""
    if isinstance(elastic, UnfitPlacement):
        return SimulatedPlacement(placement="async", how=elastic.reason)
    halves = placements(elastic)["async"]
    if isinstance(halves, UnfitPlacement):
        return SimulatedPlacement(placement="async", how=halves.reason)
    splits = dict(_splits(elastic, halves))
    mark = " (best)" if len(splits) > 1 else ""
    rows = [_simulated("async", one, how=how + mark) for how, one in splits.items()]
    finished = [row for row in rows if row.minutes is not None]
    return min(finished, key=lambda one: one.minutes or 0.0, default=rows[0])


def _splits(elastic: Scenario, halves: Scenario) -> Iterator[tuple[str, Scenario]]:
    """Every number of cells that train, the rest being standalone engines of the same size."""
    shape = elastic.shape
    for training in range(1, shape.num_cells + 1):
        serving = shape.num_cells - training
        alone = (*shape.standalone_capacities, *(shape.cell_capacity,) * serving)
        if alone:
            split = replace(halves.shape, num_cells=training, standalone_capacities=alone)
            yield f"{training} train, {serving} serve", replace(halves, shape=split)
