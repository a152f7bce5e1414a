"""Ways beyond the paper to get the same work done sooner, as changes to a scenario.

Rule 1: none changes the dispatch, so mean staleness stays what it was.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TypeAlias

from gyre.scheduler.launching import LongestFirst
from gyre.simulator.costs import ByGroups, ByTokens
from gyre.simulator.scenario import Estimates, Scenario
from gyre.simulator.workload import Decode

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
