"""Small scenarios whose times can be computed by hand."""

from dataclasses import replace

from gyre.scheduler.config import SchedulerConfig
from gyre.scheduler.policies import Boundary, Elastic
from gyre.simulator.scenario import Scenario
from gyre.simulator.workload import (
    ByGroups,
    Costs,
    LogNormal,
    ReplayedDurations,
    RewardDurations,
    SimulatedDeadlines,
    Workload,
)

LONG = SimulatedDeadlines(harness_h=1000, overall_h=2000)


def shape(**changes):
    """One group of two executions per batch, on one cell that holds both."""
    plain = {
        "groups_per_batch": 1,
        "executions_per_group": 2,
        "num_cells": 1,
        "cell_capacity": 2,
        "steps": 1,
        "dispatch": Boundary(extra_dispatch=0),
        "placement": Elastic(),
        "supply_dwell_s": 0.0,
    }
    return SchedulerConfig(**plain | changes)


def scenario(hours=((1.0, 2.0),), *, costs=None, faults=None, estimates=None, seed=0, **changes):
    """Groups take these hours in turn; a cell trains one group an hour and nothing else costs."""
    of_scenario = {"nodes_per_cell", "executions_per_claim", "join_s"}
    of_work = {"decode", "evaluations", "failures", "drift", "between", "deadlines"}
    work = {"deadlines": LONG} | {k: v for k, v in changes.items() if k in of_work}
    rest = {k: v for k, v in changes.items() if k in of_scenario}
    if faults is not None:
        rest["faults"] = faults
    kept = {k: v for k, v in changes.items() if k not in of_scenario | of_work}
    return Scenario(
        name="scene",
        shape=shape(**kept),
        workload=Workload(durations=ReplayedDurations(groups=tuple(map(tuple, hours))), **work),
        costs=costs or Costs(training=ByGroups(groups_per_node_hour=1.0)),
        seed=seed,
        estimates=estimates,
        **rest,
    )


def small_run(*, groups_per_node_hour, nodes_per_cell=1, **stuck):
    """Four cells and four bursts of three steps, with costs and scatter as in the paper's runs."""
    costs = Costs(
        training=ByGroups(groups_per_node_hour=groups_per_node_hour),
        into_training_s=90.0,
        out_of_training_s=40.0,
        pull_s=25.0,
        update_s=30.0,
        publication_s=60.0,
    )
    workload = Workload(
        durations=LogNormal(log_mean=0.0, sigma=0.5),
        between=0.4,
        deadlines=SimulatedDeadlines(harness_h=2.5, overall_h=3.0),
        evaluations=RewardDurations(mean_h=0.1, sigma=0.5, **stuck),
    )
    run = scenario(
        groups_per_batch=8,
        executions_per_group=8,
        num_cells=4,
        cell_capacity=40,
        steps=12,
        steps_per_burst=3,
        dispatch=Boundary(extra_dispatch=0.5),
        supply_dwell_s=5.0,
        costs=costs,
        nodes_per_cell=nodes_per_cell,
    )
    return replace(run, workload=workload)
