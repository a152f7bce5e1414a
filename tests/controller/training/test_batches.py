"""Steps that are made again are the same steps, or the run stops by name."""

import asyncio

import pytest
from tests.cell.support.fake_cells import FakeCell, FakeWorld
from tests.controller.support.fake_run_loop import FakeRunLoop
from tests.scheduler.support.scene import shape

from gyre.aio import ChangeSignal
from gyre.batching.group_buffer import GroupBuffer
from gyre.batching.group_packer import ClosedExecution, EncodedClaim, PackedGroup
from gyre.batching.work_queue import CORE
from gyre.controller.recovered_state import RecoveredState
from gyre.controller.training.coordinator import Batches, TrainingSettings
from gyre.controller.training.update import Queue
from gyre.types.errors import LogDamaged
from gyre.types.run_events import CallsDamaged, StepReplayed

TERMS = TrainingSettings(
    groups_per_batch=1,
    batch_executions=2,
    scored_first=False,
    lease_s=60.0,
    join_s=60.0,
    group_s=60.0,
)
DAMAGE = "a frame has another checksum"


class Packer:
    """A claim for every execution whose log can be read."""

    def __init__(self):
        self.damaged = set()

    def __call__(self, group):
        claims = tuple(
            EncodedClaim(
                data=one.execution.encode(), num_executions=1, num_tokens=1, oversize=False
            )
            for one in group.kept
            if one.execution not in self.damaged
        )
        return PackedGroup(
            claims=claims,
            num_trajectories=len(claims),
            num_tokens=1,
            num_targets=1,
            row_tokens=1,
            damaged=dict.fromkeys(sorted(self.damaged), DAMAGE),
        )


async def taken(packer, recalled=()):
    """One step with one group of the executions `a` and `b`; what was heard comes too."""
    loop, groups, queue = FakeRunLoop(), GroupBuffer(), Queue(lease_s=TERMS.lease_s)
    queue.join(CORE, 0.0)
    batches = Batches(loop, groups, queue, TERMS, packer, ChangeSignal())
    before = RecoveredState(shape())
    before.damaged.update(recalled)
    batches.restore(before)
    groups.admit(0, version=0, size=2)
    for number, name in enumerate("ab"):
        groups.close(0, number, ClosedExecution(execution=name, reward=1.0))
    groups.offer(0, is_void=False)
    batches.open(0)
    batches.pull()
    await batches.pack()
    while (lease := queue.claim(CORE, 0.0)) is not None:
        queue.done(lease.lease)
    batches.stepped(0, gradient_norm=1.0)
    return batches, loop.recorded


def trained(core):
    return [claim.decode() for claim, _ in core.trained]


def test_a_log_that_was_damaged_since_stops_the_replay_by_name():
    """SPEC 3.6, 10: engines may serve this version, and without the log its weights differ."""

    async def work():
        packer, core = Packer(), FakeCell(FakeWorld(), 0)
        batches, heard = await taken(packer)
        packer.damaged.add("b")
        with pytest.raises(LogDamaged, match=f"step 0 cannot be made again as it was: b: {DAMAGE}"):
            await batches.replay(core, [0])
        return core, heard

    core, heard = asyncio.run(work())

    assert [] == trained(core)
    assert (0, []) == (core.version, [one for one in heard if isinstance(one, StepReplayed)])


def test_a_log_that_a_controller_before_this_one_found_damaged_is_left_out_again():
    """Otherwise no resume could take its step again."""

    async def work():
        packer, core = Packer(), FakeCell(FakeWorld(), 0)
        packer.damaged.add("b")
        batches, heard = await taken(packer, recalled=["b"])
        await core.enter()
        await batches.replay(core, [0])
        return core, heard

    core, heard = asyncio.run(work())

    assert ["a"] == trained(core)
    assert [] == [one for one in heard if isinstance(one, CallsDamaged)]


def test_a_log_that_was_damaged_when_its_group_was_packed_is_left_out_again():
    async def work():
        packer, core = Packer(), FakeCell(FakeWorld(), 0)
        packer.damaged.add("b")
        batches, heard = await taken(packer)
        await core.enter()
        await batches.replay(core, [0])
        return core, heard

    core, heard = asyncio.run(work())

    assert ["a"] == trained(core)
    assert ["b"] == [one.execution for one in heard if isinstance(one, CallsDamaged)]
    assert [0] == [one.step for one in heard if isinstance(one, StepReplayed)]
