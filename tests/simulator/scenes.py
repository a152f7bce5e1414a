"""Small scenarios whose times can be computed by hand."""

from gyre.scheduler.config import SchedulerConfig
from gyre.scheduler.policies import Boundary, Elastic
from gyre.simulator.scenario import Scenario
from gyre.simulator.workload import ByGroups, Costs, ReplayedDurations, SimulatedDeadlines, Workload

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
