"""A live run's events in the world that watches a scheduler's promises (tests/scheduler)."""

from tests.scheduler.support.world import World

from gyre.scheduler.messages import (
    CellRecovered,
    EngineReturned,
    EvaluationEnded,
    ExecutionClosed,
    ExecutionTerminated,
    GroupAdmitted,
    GroupAssigned,
    Published,
    RunStarted,
)


def watched(shape, events):
    """The world after all of them; every promise of SPEC 1 and 2 was checked after each."""
    (start_s, first), *rest = events
    assert RunStarted() == first
    world = World(shape, now=start_s)
    for now, event in rest:
        world.now = now
        _answered(world, event)
        world.tell(event)
    return world


def _answered(world, event):
    """What the world owed an answer to, and has just got one."""
    match event:
        case GroupAdmitted(group=group):
            world.admissions.remove(group)
        case ExecutionTerminated(group=group, member=member):
            world.running.remove((group, member))
            world.closing.append((group, member))
        case ExecutionClosed(group=group, member=member):
            world.closing.remove((group, member))
        case GroupAssigned(group=group):
            world.offered.remove(group)
        case Published():
            world.publish = None
        case EngineReturned(engine=engine):
            world.loads.pop(engine, None)
        case CellRecovered(cell=cell):
            world.restarts.discard(cell)
        case EvaluationEnded():
            pass
        case _:
            pass
