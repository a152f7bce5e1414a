"""Few numbers fitted to chosen published hours, and what the same numbers predict of the rest."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

from gyre.simulator.report_paper import CalibrationRow, Comparison
from gyre.simulator.result import SimulationResult
from gyre.simulator.scenario import Scenario
from gyre.simulator.workload import ByGroups
from gyre.simulator.world import run
from gyre.types.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """A number of a scenario that may be fitted."""

    name: str
    start: float
    step: float
    """The first change that is tried; halved until it is below `finest`."""
    finest: float
    put: Callable[[Scenario, float], Scenario]


def _put_rate(scenario: Scenario, value: float) -> Scenario:
    training = ByGroups(groups_per_node_hour=value)
    return replace(scenario, costs=replace(scenario.costs, training=training))


def _put_drift(scenario: Scenario, value: float) -> Scenario:
    drift = replace(scenario.workload.drift, to=value)
    return replace(scenario, workload=replace(scenario.workload, drift=drift))


TRAINING_RATE = Parameter(
    name="groups_per_node_hour", start=2.5, step=0.2, finest=0.05, put=_put_rate
)
DRIFT = Parameter(name="drift.to", start=0.92, step=0.04, finest=0.01, put=_put_drift)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """What was found, and how far from the published hours it is."""

    values: tuple[tuple[str, float], ...]
    """By parameter."""
    fitted_error: float
    """Mean over the rows it was fitted to."""
    num_tried: int
    """Settings that were simulated."""


def compare(
    scenarios: Mapping[str, Scenario],
    published_h: Mapping[str, float],
    *,
    seeds: Sequence[int],
    fitted: Sequence[str] = (),
) -> Comparison:
    """Every scenario that has published hours, over seeds."""
    return Comparison(
        rows=tuple(
            CalibrationRow(
                name=name,
                published_h=published_h[name],
                simulated_h=tuple(one.hours for one in over_seeds(scenario, seeds)),
                is_fitted=name in fitted,
            )
            for name, scenario in scenarios.items()
            if name in published_h
        )
    )


def over_seeds(scenario: Scenario, seeds: Sequence[int]) -> list[SimulationResult]:
    return [run(replace(scenario, seed=seed)) for seed in seeds]


def fit(
    scenarios: Mapping[str, Scenario],
    published_h: Mapping[str, float],
    *,
    parameters: Sequence[Parameter],
    seeds: Sequence[int],
) -> Fit:
    """The least mean relative error that a search with ever smaller steps finds.

    All trials meet the same seeds, so that they differ by their parameters alone.
    """
    if missing := sorted(set(scenarios) - set(published_h)):
        raise ConfigError(f"no published hours to fit {', '.join(missing)} to")
    tried: dict[tuple[float, ...], float] = {}

    def error(values: tuple[float, ...]) -> float:
        if values not in tried:
            changed = dict(scenarios)
            for parameter, value in zip(parameters, values, strict=True):
                changed = {name: parameter.put(one, value) for name, one in changed.items()}
            tried[values] = compare(changed, published_h, seeds=seeds).mean_error
        return tried[values]

    best = tuple(one.start for one in parameters)
    steps = [one.step for one in parameters]
    while any(step >= one.finest for step, one in zip(steps, parameters, strict=True)):
        nearest = min(_around(best, steps), key=error)
        if error(nearest) < error(best):
            best = nearest
        else:
            steps = [step / 2 for step in steps]
    names = [one.name for one in parameters]
    return Fit(
        values=tuple(zip(names, best, strict=True)),
        fitted_error=error(best),
        num_tried=len(tried),
    )


def _around(values: Sequence[float], steps: Sequence[float]) -> list[tuple[float, ...]]:
    """The corners and edges of a box around these values."""
    choices = [
        (round(value - step, 6), value, round(value + step, 6))
        for value, step in zip(values, steps, strict=True)
    ]
    return [one for one in product(*choices) if one != tuple(values)]
