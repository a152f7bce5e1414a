"""The hall under faults: whoever dies or hangs, a batch is in the weights once and whole."""

import asyncio
from dataclasses import replace

import pytest
from tests.cell.support.fake_cells import FakeCell, FakeWorld
from tests.controller.support.cells_in_memory import cells_in_memory
from tests.controller.support.fake_run_loop import FakeRunLoop
from tests.scheduler.support.scene import shape
from tests.testing.support.virtual_time import hurried
from tests.waiting import PATIENCE_S

from gyre.batching.group_packer import ClosedExecution, EncodedClaim, PackedGroup
from gyre.batching.work_queue import CORE
from gyre.controller.recovered_state import RecoveredState, RecoveredStep
from gyre.controller.training.coordinator import TrainingCoordinator, TrainingSettings
from gyre.scheduler.messages import CellDied, GroupAssigned, OfferGroup, StepTaken
from gyre.types.errors import CellError, InternalError
from gyre.types.run_events import CallsDamaged, ClaimScored, ClaimTrained, GroupPacked, StepReplayed

ENDS = ("die", "die after")
LIMIT_S = PATIENCE_S
"""Longer than any of these takes."""


def packer(group):
    """Two claims of each group."""
    claims = tuple(
        EncodedClaim(
            data=f"{group.number}.{one}".encode(), num_executions=1, num_tokens=1, oversize=False
        )
        for one in range(2)
    )
    return PackedGroup(claims=claims, num_trajectories=2, num_tokens=2, num_targets=2, row_tokens=2)


def named(group):
    """The same claims, which say whose they are."""
    made = packer(group)
    return replace(
        made, claims=tuple(replace(one, shares=(one.data.decode(),)) for one in made.claims)
    )


def fault(cell, order, what):
    """It happens to the first such order of the cell."""

    def happens(scene):
        scene.coordinator.open(0)
        scene.cells[cell].client.faults.append((order, what))

    return happens


def fenced(cell, order):
    """While it does the order it is given up by whoever watches it, and never answers."""

    def happens(scene):
        async def hang():
            scene.record(CellDied(cell=cell))
            await scene.cells[cell].client.hung.wait()

        fault(cell, order, hang)(scene)

    return happens


class Checkpoints:
    """Versions of which one may be made; none covers anything."""

    covered = 0

    def __init__(self):
        self.versions = []

    def begin(self, version):
        self.versions.append(version)


class Scene(FakeRunLoop):
    """A hall with cells in memory, and a host that obeys nothing but deaths and steps."""

    def __init__(self, group, *, group_s=0.3, scored_first=False, pack=packer):
        super().__init__()
        self.world = FakeWorld()
        self.cells = cells_in_memory(self.world)
        self.checkpointer = Checkpoints()
        self.versions = self.checkpointer.versions
        self.restarted = []
        self.joins = tuple(self.cells)
        self.noise = 0.0
        self.meanwhile = lambda: None
        """Done whenever the journal is waited for."""
        self.group = group
        terms = TrainingSettings(
            groups_per_batch=2,
            batch_executions=2,
            lease_s=60.0,
            join_s=0.2,
            group_s=group_s,
            scored_first=scored_first,
        )
        self.coordinator = TrainingCoordinator(self, self.cells, self.checkpointer, terms, pack)

    @property
    def now(self):
        return asyncio.get_running_loop().time()

    def spawn(self, work):
        task = self.group.create_task(work)
        self.tasks.append(task)
        return task

    def record(self, fact):
        super().record(fact)
        if isinstance(fact, CellDied) and fact.cell not in self.restarted:
            self.restarted.append(fact.cell)
            self.spawn(self.revive(fact.cell))
        if isinstance(fact, StepTaken) and fact.step == 0:
            self.coordinator.open(1)

    async def settled(self):
        self.meanwhile()
        await super().settled()

    async def revive(self, cell):
        """Another process takes its place; the core is brought up to date and joins."""
        self.coordinator.lost(self.cells[cell])
        self.cells[cell].client.die()
        self.cells[cell].replace(FakeCell(self.world, cell))
        self.cells[cell].client.noise = self.noise
        if cell == CORE:
            await self.coordinator.replay(self.cells[cell].client, 0)
            await self.coordinator.between_updates()
            self.coordinator.join(self.cells[cell])

    def begin(self):
        for number in range(4):
            self.coordinator.admit(number, version=0, size=1)
            kept = {0: ClosedExecution(execution=f"e{number}", reward=1.0)}
            command = OfferGroup(group=number, version=0, members=(0,), is_void=False)
            self.coordinator.offer(command, kept)

    def facts(self, kind):
        return [one for one in self.recorded if isinstance(one, kind)]


def recovered(**known):
    """What an earlier controller left of batches whose groups are there."""
    found = RecoveredState(shape())
    for name, value in known.items():
        setattr(found, name, value)
    return found


def staged(before, **changed):
    """Two steps of two groups each, with what was done to them before."""

    async def live():
        async with asyncio.timeout(LIMIT_S), asyncio.TaskGroup() as group:
            scene = Scene(group, **changed)
            scene.begin()
            before(scene)
            for cell in scene.joins:
                scene.coordinator.join(scene.cells[cell])
            scene.spawn(scene.coordinator.work())
            while 2 not in scene.versions:
                await asyncio.sleep(0.001)
            await scene.coordinator.between_updates()
            for task in scene.tasks:
                task.cancel()
        return scene

    return hurried(live())


BATCHES = tuple(tuple(f"{n}.{c}".encode() for n in (s, s + 1) for c in range(2)) for s in (0, 2))
"""What a run without faults trains."""


def test_without_faults_every_claim_is_in_its_step_once():
    scene = staged(lambda scene: scene.coordinator.open(0))

    assert BATCHES == scene.cells[CORE].client.weights
    assert [0, 1] == [one.step for one in scene.facts(StepTaken)]
    assert [] == scene.facts(CellDied)


FAULTS = [
    *((0, order, what) for order in ("train", "reduce", "step", "spread") for what in ENDS),
    *((0, order, "hang") for order in ("reduce", "step", "spread")),
    *((1, order, what) for order in ("train", "reduce", "spread") for what in ENDS),
    *((1, order, "hang") for order in ("reduce", "spread")),
]


@pytest.mark.parametrize(("cell", "order", "what"), FAULTS)
def test_whoever_is_lost_wherever_each_claim_is_in_its_step_once(cell, order, what):
    """SPEC 3.2, 10."""
    patience_s = 0.1 if (order, what) == ("step", "hang") else 0.3
    scene = staged(fault(cell, order, what), group_s=patience_s)

    assert [cell] == scene.restarted, "the fault came"
    assert BATCHES == scene.cells[CORE].client.weights
    assert [0, 1] == [one.step for one in scene.facts(StepTaken)]
    assert [0, 1, 2, 3] == [one.group for one in scene.facts(GroupAssigned)]
    assert [0, 1, 2, 3] == [one.group for one in scene.facts(GroupPacked)]
    assert all(one.is_equal for one in scene.facts(StepReplayed))


@pytest.mark.parametrize("joins", [(0, 1), (0, 1, 2)])
def test_a_core_that_is_lost_between_its_step_and_the_sharing_leaves_nobody_with_old_weights(joins):
    """SPEC 3.3: its satellites claim nothing of the next batch before they have the new weights."""

    def happens(scene):
        scene.coordinator.open(0)
        scene.joins = joins

        def lost():
            if scene.facts(StepTaken) and CORE not in scene.restarted:
                scene.record(CellDied(cell=CORE))

        scene.meanwhile = lost

    scene = staged(happens)

    assert [CORE] == scene.restarted
    assert BATCHES == scene.cells[CORE].client.weights
    trained = [one for cell in joins[1:] for one in scene.cells[cell].client.trained]
    assert {(b"0", 0), (b"1", 0), (b"2", 1), (b"3", 1)} >= {(one[:1], at) for one, at in trained}


@pytest.mark.parametrize(
    ("cell", "order"),
    [
        *((0, order) for order in ("train", "reduce", "step", "spread")),
        *((1, order) for order in ("train", "reduce", "spread")),
    ],
)
def test_a_cell_that_is_given_up_in_the_middle_of_an_order_counts_no_more(cell, order):
    """Its process still runs when its work returns."""
    scene = staged(fenced(cell, order))

    assert [cell] == scene.restarted
    assert BATCHES == scene.cells[CORE].client.weights
    assert [0, 1] == [one.step for one in scene.facts(StepTaken)]


def test_failures_of_updates_that_came_about_in_the_end_do_not_add_up():
    """Three in a row end a run, and not three of a long one."""

    def happens(scene):
        for order in ("reduce", "reduce", "spread", "reduce"):
            fault = (order, "refuse")
            scene.cells[1].client.faults.append(fault)
        scene.coordinator.open(0)

    scene = staged(happens)

    assert not scene.cells[1].client.faults
    assert [] == scene.facts(CellDied)
    assert BATCHES == scene.cells[CORE].client.weights


def test_a_satellite_that_finds_the_core_gone_is_not_given_up_for_it():
    """However often the core dies before the satellite has its weights again."""

    def happens(scene):
        fault(CORE, "spread", "refuse")(scene)
        revive, deaths = scene.revive, 4

        async def again(cell):
            nonlocal deaths
            await revive(cell)
            if cell == CORE and deaths:
                deaths -= 1
                scene.restarted.remove(CORE)
                scene.cells[CORE].client.faults.append(("expose", "die"))

        async def first():
            scene.cells[CORE].client.faults.append(("expose", "die"))
            message = "refused"
            raise CellError(message)

        scene.revive = again
        scene.cells[CORE].client.faults[0] = ("spread", first)

    scene = staged(happens)

    assert {CORE} == {one.cell for one in scene.facts(CellDied)}
    assert BATCHES == scene.cells[CORE].client.weights


def test_a_core_that_was_out_of_reach_while_it_was_restarted_trains_on():
    """A satellite that asked it for weights meanwhile took it for gone, and its cell was dead."""

    def happens(scene):
        fault(CORE, "train", "die")(scene)

        async def revive(number):
            cell, core = scene.cells[number], FakeCell(scene.world, number)
            scene.coordinator.lost(cell)
            cell.replace(core)
            core.is_dead = True
            with pytest.raises(CellError, match="no weights to give"):
                await scene.coordinator.pull(scene.cells[1], wanted=lambda: True)
            core.is_dead = False
            await scene.coordinator.replay(core, 0)
            cell.recovered(scene.now)
            scene.coordinator.join(cell)

        scene.revive = revive
        scene.joins = (CORE,)

    assert BATCHES == staged(happens).cells[CORE].client.weights


def test_a_core_that_goes_home_with_its_last_claim_in_hand_steps_first():
    """SPEC 2.5: what it parks is a sum that nobody is about to step."""

    def happens(scene):
        scene.joins = (CORE,)
        coordinator = scene.coordinator

        async def last():
            if len(scene.facts(ClaimTrained)) < 3:
                scene.cells[CORE].client.faults.appendleft(("train", last))
                return
            scene.cells[CORE].is_leaving = True
            scene.spawn(home())
            await asyncio.sleep(0)

        async def home():
            await coordinator.leave(scene.cells[CORE], parks=True)
            scene.left_at = coordinator.version
            coordinator.join(scene.cells[CORE])

        fault(CORE, "train", last)(scene)

    scene = staged(happens)

    assert 1 == scene.left_at
    assert [0, 1] == [one.step for one in scene.facts(StepTaken)]
    assert BATCHES == scene.cells[CORE].client.weights


def test_satellites_take_the_weights_again_where_a_replay_comes_out_otherwise():
    def happens(scene):
        fault(CORE, "spread", "die after")(scene)
        scene.noise = 1.0

    scene = staged(happens)

    assert [(0, False)] == [(one.step, one.is_equal) for one in scene.facts(StepReplayed)]
    assert BATCHES == scene.cells[CORE].client.weights
    for cell in (1, 2):
        orders = scene.cells[cell].client.orders
        assert "pull" in orders[orders.index("spread") :]


def test_satellites_keep_their_work_where_a_replay_comes_out_the_same():
    def happens(scene):
        async def second():
            scene.cells[CORE].client.faults.append(("train", "die"))

        fault(CORE, "spread", second)(scene)

    scene = staged(happens)

    assert [(0, True)] == [(one.step, one.is_equal) for one in scene.facts(StepReplayed)]
    assert BATCHES == scene.cells[CORE].client.weights
    assert "pull" not in [*scene.cells[1].client.orders, *scene.cells[2].client.orders]


def test_a_hall_that_recalls_a_run_goes_on_with_the_batch_that_was_open():
    """Step 0 is taken and no checkpoint has it; one group of the next batch was pulled."""

    def recalls(scene):
        taken, pulled = RecoveredStep(groups=[1, 0], gradient_norm=7.0), RecoveredStep(groups=[3])
        scene.coordinator.restore(recovered(steps={0: taken}, open=(1, pulled)), {})
        scene.restarted.append(CORE)
        scene.spawn(scene.revive(CORE))

    scene = staged(recalls)

    assert [(0, False)] == [(one.step, one.is_equal) for one in scene.facts(StepReplayed)]
    assert [2] == [one.group for one in scene.facts(GroupAssigned)]
    assert [3, 2] == [one.group for one in scene.facts(GroupPacked)]
    assert BATCHES == scene.cells[CORE].client.weights


def test_what_was_scored_is_journaled_and_not_scored_again_by_a_hall_that_recalls_it():
    """SPEC 8.3: the scores of a claim are of its version, and count once."""

    def begins(scene):
        scene.coordinator.open(0)
        scene.joins = (CORE,)

    def recalls(scene):
        scores = {fact.executions: fact.scores for fact in scored[:3]}
        scene.coordinator.restore(recovered(open=(0, RecoveredStep(scores=scores))), {})
        scene.joins = (CORE,)

    first = staged(begins, scored_first=True, pack=named)
    scored = first.facts(ClaimScored)
    again = staged(recalls, scored_first=True, pack=named)

    assert [(step, claim) for step in (0, 1) for claim in range(4)] == sorted(
        (one.step, one.claim) for one in scored
    )
    assert [8, 5] == [one.cells[CORE].client.orders.count("score") for one in (first, again)]
    assert BATCHES == again.cells[CORE].client.weights


def test_a_log_that_is_damaged_is_named_and_ends_nothing():
    def damaged(group):
        return replace(packer(group), damaged={f"e{group.number}": "a frame has another checksum"})

    scene = staged(lambda scene: scene.coordinator.open(0), pack=damaged)

    assert [(number, f"e{number}") for number in range(4)] == sorted(
        (one.group, one.execution) for one in scene.facts(CallsDamaged)
    )
    assert BATCHES == scene.cells[CORE].client.weights


@pytest.mark.parametrize(
    "wrong",
    [
        {"open": (0, RecoveredStep(groups=[0, 1, 2]))},
        {"open": (0, RecoveredStep(groups=[9]))},
        {"steps": {0: RecoveredStep(groups=[0])}},
    ],
)
def test_what_cannot_have_been_is_not_restored(wrong):
    """A batch has too many groups, one that was never admitted, or too few for its step."""

    async def live():
        async with asyncio.TaskGroup() as group:
            scene = Scene(group)
            scene.begin()
            scene.coordinator.restore(recovered(**wrong), {})

    with pytest.raises(ExceptionGroup) as found:
        asyncio.run(live())

    assert found.group_contains(InternalError)


def test_a_core_that_is_lost_while_an_update_waits_for_a_pull_takes_no_step():
    """A satellite takes weights when the last claim is done, and the core dies meanwhile."""

    def happens(scene):
        async def meanwhile():
            while len(scene.facts(ClaimTrained)) < 4:
                await asyncio.sleep(0)
            scene.record(CellDied(cell=CORE))

        async def pulls():
            await scene.coordinator.pull(scene.cells[2], wanted=lambda: True)

        fault(2, "pull", meanwhile)(scene)
        scene.joins = (0, 1)
        scene.spawn(pulls())

    scene = staged(happens)

    assert [CORE] == scene.restarted
    assert BATCHES == scene.cells[CORE].client.weights
