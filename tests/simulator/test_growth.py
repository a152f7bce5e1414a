"""The simulator's work grows with what happens, and not with how much there is: by instructions."""

from dataclasses import replace

from tests.instructions import instructions

from gyre.simulator.paper import NL2REPO, compared
from gyre.simulator.world import World

STEPS = 3
TIMES = 8
"""How much larger the larger run is, in cells and in groups of a batch."""
MOST = 1.25
"""More instructions an event than this, at that size, and the growth is not linear."""


def scene(times):
    one = compared(NL2REPO, staleness=1.5)["gyre"]
    shape = replace(
        one.shape, num_cells=4 * times, groups_per_batch=4 * times, cell_capacity=36, steps=STEPS
    )
    return replace(one, shape=shape, nodes_per_cell=1.0, executions_per_claim=4)


def instructions_an_event(scenario):
    """Bytecodes of a whole run, by event; the same on every machine."""
    world = World(scenario)
    record = None

    def work():
        nonlocal record
        record = world.run()

    counted = instructions(work)
    return counted / record.counts.events, record.counts


def test_an_event_costs_the_same_in_a_run_eight_times_as_large():
    small, of_small = instructions_an_event(scene(1))
    large, of_large = instructions_an_event(scene(TIMES))

    assert TIMES * of_small.executions_launched <= 1.05 * of_large.executions_launched
    assert large <= MOST * small
