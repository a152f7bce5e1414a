"""Journals of simulated runs, with the facts for people that a live run would have written."""

from collections import Counter

from tests.simulator.support.scenes import small_run

from gyre.journal.journal import read, write
from gyre.scheduler.messages import (
    CellServing,
    CellTraining,
    ExecutionClosed,
    GroupAssigned,
    Published,
    StepTaken,
)
from gyre.scheduler.replay import JOURNAL_EVENTS
from gyre.simulator.from_journal import header_of
from gyre.simulator.world import EventLog, run
from gyre.types.outcomes import Outcome
from gyre.types.run_events import (
    ClaimTrained,
    GroupPacked,
    RewardGiven,
    RunEnded,
    StepMade,
    TransitionTimed,
    WeightsPublished,
)
from gyre.types.training import Measures

SMALL = small_run(groups_per_node_hour=12.0, stuck_queries=0.1, stuck_within=0.3)
"""Four cells, four bursts of three steps."""

MOVED = {"reroutes": 3, "lost_hand_overs": 0, "carried_bytes": 2_000_000, "carried_tokens": 700}
NOTHING = Measures(
    num_targets=0,
    num_capped=0,
    num_raised=0,
    num_raised_clipped=0,
    num_lowered=0,
    num_lowered_clipped=0,
    sum_ratio=0.0,
    max_gap=None,
)


def simulated(one):
    """The record of a run, and its events with their times."""
    log = EventLog()
    record = run(one, log=log)
    return record, [(now, event) for now, event, _ in log.entries]


def reward_of(step):
    """Of an invented agent that learns."""
    return 0.1 + 0.06 * step


def told(events):
    """The events among facts for people; every claim of an even group is the core's."""
    claims = Counter()
    for now, event in events:
        match event:
            case ExecutionClosed(group=group, member=member, outcome=outcome):
                score = 0.5 if outcome is Outcome.VALID else None
                name = f"g{group}-{member}"
                yield (
                    now,
                    RewardGiven(group=group, member=member, execution=name, score=score, ran_s=1.0),
                )
            case StepTaken(step=step):
                yield now, made(step, claims)
                claims.clear()
            case Published(version=version):
                yield (
                    now,
                    WeightsPublished(
                        version=version, digest="d", save_s=1.5, load_s=0.5, num_bytes=270_000_000
                    ),
                )
            case _:
                pass
        yield now, event
        match event:
            case GroupAssigned(group=group, step=step):
                cell = group % 2
                claims[cell] += 2
                yield now, packed(group, step)
                for place in range(2):
                    yield now, trained(step, 2 * group + place, cell)
            case CellTraining(cell=cell, transition=transition):
                yield now, timed(cell, transition, into_training=True)
            case CellServing(cell=cell, transition=transition):
                yield now, timed(cell, transition, into_training=False)
            case _:
                pass
    yield now, RunEnded(reason="finished")


def made(step, claims):
    return StepMade(
        step=step,
        loss=-0.01,
        reward=reward_of(step),
        gradient_norm=0.5,
        is_clipped=step == 0,
        claims=dict(claims),
        reduce_s=0.2,
        step_s=0.4,
        reduced_bytes=1_000_000,
    )


def packed(group, step):
    return GroupPacked(
        group=group,
        step=step,
        num_claims=2,
        num_trajectories=10,
        num_tokens=600,
        num_targets=100,
        row_tokens=1000,
    )


def trained(step, claim, cell):
    return ClaimTrained(
        step=step,
        claim=claim,
        cell=cell,
        num_executions=4,
        num_tokens=300,
        loss=0.0,
        seconds=3.0,
        measures=NOTHING,
    )


def timed(cell, transition, *, into_training):
    phases = {"drain": 0.5, "offload": 1.0, "restore": 2.0} if into_training else {"load": 1.5}
    moved = MOVED if into_training else {}
    return TransitionTimed(
        cell=cell, transition=transition, into_training=into_training, phases=phases, moved=moved
    )


def journal(path, one, facts):
    """What was written, read back."""
    write(path, header_of(one, started_at=0.0), facts, kinds=JOURNAL_EVENTS)
    return read(path, kinds=JOURNAL_EVENTS)
