"""The same batch gives the same update, however cells and time divide it (SPEC 3.2, 3.6)."""

import copy
from random import Random

import pytest
import torch
from tests.trainer.support.cases import OPTIMIZER
from tests.trainer.support.scenes import NUM_EXECUTIONS, a_scene, a_trainer

from gyre.batching.work_queue import CORE, MicroStepQueue, QueuedClaim
from gyre.config.sections import OptimizerConfig
from gyre.model.network import Network

SEEDS = range(4)
NUM_STEPS = 2
SENSITIVE = OptimizerConfig(lr=1e-5)
"""With an eps at which the last bit of a gradient can turn a step around."""


@pytest.fixture(scope="module", params=["qwen2", "qwen3"])
def batch(request):
    """A float32 network, and the claims of three scenes of it; qwen2's head is its embedding."""
    scenes = [a_scene(request.param, seed) for seed in range(3)]
    network = Network(copy.deepcopy(scenes[0].network.module).float())
    every = [(scene, one) for scene in scenes for one in scene.executions]
    return network, [claim for scene, one in every for claim in scene.claims([one], pack_tokens=24)]


def weights(trainer):
    return {name: one.detach() for name, one in trainer.network.module.named_parameters()}


def train(trainer, claim):
    trainer.train(claim, num_executions=NUM_EXECUTIONS)


class Cells:
    """A core, and satellites that join, claim, die and are summed when the generator says so."""

    def __init__(self, network, rng, **changes):
        self.core = a_trainer(network, **changes)
        self.network, self.changes = network, changes | {"optimizer": None}
        self.rng = rng
        self.satellites = {}
        self.num_returned = self.num_joined = 0

    def update(self, claims):
        """One step; what the core's sum was before it."""
        queue = MicroStepQueue(lease_s=1.0)
        queue.join(CORE, 0.0)
        queue.offer([QueuedClaim(work=claim) for claim in claims])
        while not queue.is_reduced:
            if queue.is_done:
                self.reduce(queue)
            else:
                self.rng.choice([self.join, self.die, self.offload, *[self.work] * 5])(queue)
        held = [flat.clone() for flat in self.core.gradients]
        self.core.step()
        for cell in list(self.satellites):
            self.satellites.pop(cell)
        return held

    def join(self, queue):
        cell = self.rng.randrange(1, 5)
        if cell in self.satellites:
            return
        queue.join(cell, 0.0)
        satellite = a_trainer(self.network, **self.changes)
        satellite.load_weights(weights(self.core), version=self.core.version)
        self.satellites[cell] = satellite
        self.num_joined += 1

    def work(self, queue):
        cell = self.rng.choice([CORE, *self.satellites])
        lease = queue.claim(cell, 0.0)
        if lease is None:
            return
        train(self.core if cell == CORE else self.satellites[cell], lease.work)
        assert queue.done(lease.lease)

    def die(self, queue):
        """With a claim under way and all that it had done."""
        if not self.satellites:
            return
        cell = self.rng.choice(list(self.satellites))
        queue.claim(cell, 0.0)
        self.num_returned += len(queue.leave(cell))
        del self.satellites[cell]

    def offload(self, queue):
        self.core.offload(weights=True)
        self.core.reload()

    def reduce(self, queue):
        """Cell by cell into the core's sum, or as copies that then take its place."""
        if self.rng.random() < 0.3:
            self.die(queue)
            return
        scratch = [flat.clone() for flat in self.core.gradients]
        by_copies = self.rng.random() < 0.5
        for cell, satellite in self.satellites.items():
            assert queue.reduce(cell, queue.holds(cell))
            if not by_copies:
                self.core.add_gradients(satellite.gradients)
            for one, other in zip(scratch, satellite.gradients, strict=True):
                one.add_(other)
            satellite.clear()
        if by_copies:
            self.core.replace_gradients(scratch)


def alone(network, claims, **changes):
    """By one trainer, in order: the sums before each step, and the trainer after the last."""
    trainer = a_trainer(network, **changes)
    sums = []
    for _ in range(NUM_STEPS):
        for claim in claims:
            train(trainer, claim)
        sums.append([flat.clone() for flat in trainer.gradients])
        assert trainer.step().gradient_norm > 0
    return sums, trainer


def divided(network, claims, **changes):
    """By four trainers from the start, each with every fourth claim, backwards."""
    cells = [a_trainer(network, **changes) for _ in range(4)]
    core, *satellites = cells
    sums = []
    for _ in range(NUM_STEPS):
        for number, claim in reversed(list(enumerate(claims))):
            train(cells[number % 4], claim)
        for satellite in satellites:
            core.add_gradients(satellite.gradients)
            satellite.clear()
        sums.append([flat.clone() for flat in core.gradients])
        core.step()
        for satellite in satellites:
            satellite.load_weights(weights(core), version=core.version)
    return sums, core


def at_random(network, claims, seed, **changes):
    """By a core and whoever is there."""
    cells = Cells(network, Random(seed), **changes)
    return [cells.update(claims) for _ in range(NUM_STEPS)], cells.core


def every_way(network, claims, **changes):
    yield divided(network, claims, **changes)
    for seed in SEEDS:
        yield at_random(network, claims, seed, **changes)


def all_bits(trainer):
    return weights(trainer) | dict(trainer.export().tensors)


def differing(one, other):
    return [name for name in one if not torch.equal(one[name], other[name])]


def test_every_way_gives_the_same_gradient_to_rounding(batch):
    network, claims = batch
    expected, _ = alone(network, claims, optimizer=OPTIMIZER)
    bits = []
    for found, _ in every_way(network, claims, optimizer=OPTIMIZER):
        for step, total in enumerate(expected):
            norm = float(torch.cat(total).norm())
            apart = float((torch.cat(total) - torch.cat(found[step])).norm())

            assert apart < 1e-5 * norm
            bits.append(apart == 0)
    # What the exact sums are for.
    assert not all(bits)


def test_every_way_gives_the_same_bits_in_deterministic_mode(batch):
    network, claims = batch
    changes = {"optimizer": SENSITIVE, "deterministic": True}
    expected, trainer = alone(network, claims, **changes)
    first = weights(a_trainer(network))
    assert sorted(first) == sorted(differing(first, weights(trainer)))
    for found, other in every_way(network, claims, **changes):
        for one, other_sum in zip(expected, found, strict=True):
            assert all(map(torch.equal, one, other_sum))
        assert [] == differing(all_bits(trainer), all_bits(other))


def test_the_exact_sum_is_that_of_floats_to_rounding(batch):
    network, claims = batch
    floats, _ = alone(network, claims, optimizer=OPTIMIZER)
    exact, _ = alone(network, claims, optimizer=OPTIMIZER, deterministic=True)
    for one, other in zip(floats, exact, strict=True):
        found = torch.cat(other).double() * 2.0**-44

        assert (torch.cat(one).double() - found).norm() < 1e-6 * found.norm()


def test_chance_has_cells_join_and_die_with_work(batch):
    """Or the tests above show less than they say."""
    network, claims = batch
    joined = returned = 0
    for seed in SEEDS:
        cells = Cells(network, Random(seed), optimizer=OPTIMIZER)
        cells.update(claims)
        joined, returned = joined + cells.num_joined, returned + cells.num_returned

    assert len(SEEDS) < joined
    assert len(SEEDS) < returned
