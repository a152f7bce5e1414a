"""Cells of a run whose layers are Megatron's do what others do, alone and together with them."""

import asyncio

import pytest
from tests.cell.ranks.test_multi_rank_worker import all_claims, assert_alike, two_steps
from tests.cell.support.live_cells import (
    OPTIMIZER,
    Batch,
    Started,
    join,
    reduced,
    started,
    train,
    weights,
)
from tests.controller.support.forked_cells import fork_clients
from tests.trainer.support.scenes import NUM_EXECUTIONS

from gyre.config.sections import LossConfig, TrainerConfig
from gyre.model.loader import load_network
from gyre.trainer.trainer import Trainer

pytestmark = pytest.mark.megatron
TORCH, MEGATRON = (
    TrainerConfig(kind=kind, logits_tokens=7, checkpoint=False) for kind in ("torch", "megatron")
)
cells_are_forked = fork_clients("gyre.cell.main")


@pytest.fixture(scope="module", params=["qwen3", "qwen2"])
def batch(request, tmp_path_factory):
    """The second of a model whose head is its embedding."""
    return Batch(tmp_path_factory.mktemp("model") / "model", request.param)


def alone(batch, num_steps):
    """One trainer's reports, norms and weights, on layers of transformers."""
    trainer = Trainer(
        load_network(batch.model),
        section=TORCH,
        objective=LossConfig(),
        optimizer=OPTIMIZER,
    )
    reports, norms = [], []
    for _ in range(num_steps):
        for claim in batch.claims:
            reports.append(trainer.train(claim, num_executions=NUM_EXECUTIONS))
        norms.append(trainer.step().gradient_norm)
    tensors = {name: one.detach() for name, one in trainer.network.module.named_parameters()}
    return reports, norms, tensors


@pytest.mark.parametrize("layout", [{}, {"stages": 2}, {"shards": 2}], ids=["1x1", "2x1", "1x2"])
def test_a_cell_gives_the_updates_of_one_torch_trainer(batch, layout, tmp_path):
    with started(tmp_path, batch.model, 0, trainer=MEGATRON, **layout) as made:
        found = made.run(lambda clients: two_steps(clients[0], batch, tmp_path / "v"))

    assert_alike(batch, alone(batch, 2), found)


async def one_step(client, batch):
    await client.enter()
    reports = await all_claims(client, batch, scored=False)
    await client.reduce(0, [0], {0: list(range(len(batch.claims)))})
    version = (await client.health()).trainer_version
    return reports, (await client.step(version)).gradient_norm


def test_a_checkpoint_of_one_kind_is_gone_on_from_by_the_other(batch, tmp_path):
    async def first(clients):
        found = await one_step(clients[0], batch)
        await clients[0].checkpoint(tmp_path / "one")
        return found

    async def second(clients):
        found = await one_step(clients[0], batch)
        _, tensors = await weights(clients[0], tmp_path / "two")
        return *found, tensors

    for name in ("megatron", "torch"):
        (tmp_path / name).mkdir()
    with started(tmp_path / "megatron", batch.model, 0, trainer=MEGATRON, stages=2) as made:
        reports, norm = made.run(first)
    going_on = {"trainer": TORCH, "stages": 2, "checkpoint": tmp_path / "one"}
    with started(tmp_path / "torch", batch.model, 0, **going_on) as made:
        more, other_norm, tensors = made.run(second)

    assert_alike(batch, alone(batch, 2), ([*reports, *more], [norm, other_norm], tensors))


class Mixed(Started):
    """The core computes with Megatron's layers, its satellite with those of transformers."""

    def plan(self, number):
        self._changes["trainer"] = TORCH if number else MEGATRON
        return super().plan(number)


def test_a_core_of_one_kind_adds_up_with_a_satellite_of_the_other(batch, tmp_path):
    async def scenario(clients):
        await join(clients, 0, 1)
        await asyncio.gather(*(one.form_groups(1, [0, 1]) for one in clients.values()))
        leases = {cell: list(range(cell, len(batch.claims), 2)) for cell in (0, 1)}
        reports = {}
        for cell, claims in leases.items():
            for claim in claims:
                reports[claim] = await train(clients[cell], batch, claim)
        sent = await reduced(clients, 1, leases)
        norm = (await clients[0].step(0)).gradient_norm
        _, tensors = await weights(clients[0], tmp_path / "v")
        return [reports[claim] for claim in sorted(reports)], sent, norm, tensors

    made = Mixed(tmp_path, batch.model, stages=2)
    try:
        made.start(0, 1)
        reports, (_, sent), norm, tensors = made.run(scenario)
    finally:
        made.stop()

    assert sent > 0
    assert_alike(batch, alone(batch, 1), (reports, [norm], tensors))
