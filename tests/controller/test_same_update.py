"""The same batch gives the same update through whichever cells train it (SPEC 3.2, 3.6)."""

import asyncio
from random import Random

import pytest
from tests.cell.support.live_cells import CHANGE, Batch, moved, reduced, started, train, weights
from tests.controller.support.forked_cells import fork_clients
from tests.trainer.support.cells import worst

from gyre.batching.work_queue import CORE, MicroStepQueue, QueuedClaim
from gyre.config.sections import TrainerConfig

pytestmark = pytest.mark.slow
cells_are_forked = fork_clients("gyre.cell.main")
NUM_STEPS = 2
ALONE, DIVIDED, RANDOM = 0, 10, 20
"""Numbers of three cores, each with an optimizer of its own."""
SATELLITES = (1, 2, 3)
FLOATS = TrainerConfig(logits_tokens=7, checkpoint=False)
EXACT = TrainerConfig(logits_tokens=7, checkpoint=False, deterministic=True)


@pytest.fixture(scope="module")
def batch(tmp_path_factory):
    return Batch(tmp_path_factory.mktemp("model") / "model", "qwen2")


class Cells:
    """A core, and satellites that claim what waits, join and leave when the generator says so."""

    def __init__(self, core, satellites, batch, *, epoch):
        self.clients = {CORE: core} | satellites
        self.batch = batch
        self.epoch = epoch
        self.training = []
        self.num_joined = self.num_returned = 0

    async def update(self, rng):
        """One step; without a generator all cells train from the start, in turns."""
        queue = MicroStepQueue(lease_s=1.0)
        queue.offer([QueuedClaim(work=claim) for claim in range(len(self.batch.claims))])
        for cell in sorted({CORE, *self.training}):
            await self.join(queue, cell)
        if rng is None:
            for cell in self.clients:
                await self.join(queue, cell)
        turn = 0
        while not queue.is_done:
            if rng is None:
                await self.work(queue, self.training[turn % len(self.training)])
                turn += 1
            else:
                await self.chance(queue, rng)
        members = list(queue.cells)
        leases = {cell: sorted(queue.holds(cell)) for cell in members}
        answers = await reduced(self.clients, self.epoch, leases)
        assert all(isinstance(one, int) for one in answers), answers
        version = (await self.clients[CORE].health()).trainer_version
        step = await self.clients[CORE].step(version)
        orders = [
            self.clients[one].broadcast_weights(self.epoch, members, step.version)
            for one in members
        ]
        await asyncio.gather(*orders)
        return step.gradient_norm

    async def chance(self, queue, rng):
        cell = rng.choice(list(self.clients))
        if cell not in self.training:
            await self.join(queue, cell)
            self.num_joined += 1
        elif cell != CORE and rng.random() < 0.2:
            self.num_returned += len(queue.leave(cell))
            self.training.remove(cell)
            await self.clients[cell].leave(keep_sum=False)
        else:
            await self.work(queue, cell)

    async def join(self, queue, cell):
        queue.join(cell, 0.0)
        if cell in self.training:
            return
        self.training.append(cell)
        await self.clients[cell].enter()
        if cell != CORE:
            await self.clients[cell].pull(await self.clients[CORE].expose())

    async def work(self, queue, cell):
        lease = queue.claim(cell, 0.0)
        if lease is not None:
            await train(self.clients[cell], self.batch, lease.work, lease=lease.lease)
            assert queue.done(lease.lease)

    async def home(self):
        for cell in self.training:
            await self.clients[cell].leave(keep_sum=False)


@pytest.fixture(scope="module", params=[FLOATS, EXACT], ids=["floats", "exact"])
def updates(request, tmp_path_factory, batch):
    """By way: norms of two steps, digest and weights after them, and how cells came and went."""
    folder = tmp_path_factory.mktemp("cells")
    numbers = (ALONE, DIVIDED, RANDOM, *SATELLITES)
    with started(folder, batch.model, *numbers, trainer=request.param) as made:

        async def scenario(clients):
            satellites = {cell: clients[cell] for cell in SATELLITES}
            found = {}
            for epoch, number in enumerate((ALONE, DIVIDED, RANDOM)):
                others = {} if number == ALONE else satellites
                cells = Cells(clients[number], others, batch, epoch=epoch)
                rng = Random(3) if number == RANDOM else None
                norms = [await cells.update(rng) for _ in range(NUM_STEPS)]
                digest, tensors = await weights(clients[number], folder / f"v{number}")
                await cells.home()
                found[number] = norms, digest, tensors, (cells.num_joined, cells.num_returned)
            return found

        yield request.param.deterministic, made.run(scenario)


@pytest.mark.parametrize("way", [DIVIDED, RANDOM], ids=["divided", "random"])
def test_cells_give_the_update_of_one_cell(updates, batch, way):
    """Bit for bit in deterministic mode, else to the rounding of sums in another order."""
    is_exact, found = updates
    norms, digest, tensors, _ = found[ALONE]
    other_norms, other_digest, other_tensors, _ = found[way]
    change = moved(batch, tensors)

    assert all(bool(one.any()) for one in change.values())
    assert CHANGE > worst(change, moved(batch, other_tensors))
    assert all(0 < one for one in norms)
    assert pytest.approx(norms, rel=1e-4) == other_norms
    if is_exact:
        assert norms == other_norms
        assert digest == other_digest


def test_chance_has_cells_join_and_leave_with_work(updates):
    """Or the test above shows less than it says."""
    _, found = updates
    joined, returned = found[RANDOM][-1]

    assert 3 < joined
    assert 0 < returned
