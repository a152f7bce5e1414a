"""A cell takes orders over HTTP: what it does, what it refuses, and what it then has changed."""

import asyncio
from dataclasses import replace

import pytest
from tests.cell.support.live_cells import (
    OPTIMIZER,
    Batch,
    join,
    manifest_of,
    of_version,
    posted,
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
from gyre.types.errors import CellError, CellGone, CheckpointError, ExposureGone, TransferError
from gyre.types.training import Score

pytestmark = pytest.mark.slow
WIDE = LossConfig(clip_low=0.02, clip_high=50.0)
"""Bounds at which every claim gives a gradient, whatever tests before have made of the weights."""
cells_are_forked = fork_clients("gyre.cell.main")


@pytest.fixture(scope="module")
def batch(tmp_path_factory):
    return Batch(tmp_path_factory.mktemp("model") / "model")


@pytest.fixture(scope="module")
def cells(tmp_path_factory, batch):
    folder = tmp_path_factory.mktemp("cells")
    with started(folder, batch.model, 0, 1, 2, objective=WIDE) as made:
        yield made


@pytest.fixture
def run(cells):
    return cells.run


def test_a_cell_says_how_it_is(run):
    async def scenario(clients):
        before = await clients[1].health()
        await clients[1].enter()
        return before, await clients[1].health()

    before, after = run(scenario)

    assert (True, False) == (before.engine_ready, after.engine_ready)
    assert (0, 0, 1) == (before.engine_version, before.trainer_version, before.claims_at_once)


def test_weights_are_pulled_whole_or_not_at_all(run, cells, tmp_path):
    async def scenario(clients):
        await clients[0].enter()
        await clients[1].enter()
        exposed = await clients[0].expose()
        part = exposed.parts[-1]
        path = cells.share / part.exposure.peer
        whole = path.read_bytes()
        before, _ = await weights(clients[1], tmp_path / "before")
        refusals = []
        # The last bytes are of the last block, so that the sheet still reads as one.
        for wrong in (whole[:-1] + bytes([whole[-1] ^ 64]), whole[:-4], b""):
            path.write_bytes(wrong)
            with pytest.raises(CellError) as refused:
                await clients[1].pull(of_version(exposed, 7))
            refusals.append(str(refused.value))
        path.write_bytes(whole)
        version = (await clients[1].health()).trainer_version
        with pytest.raises(TransferError, match="expected somebody who holds it"):
            await clients[1].pull(replace(exposed, parts=()))
        with pytest.raises(TransferError, match="expected version 8, found 0"):
            await clients[1].pull(replace(exposed, version=8))
        after, _ = await weights(clients[1], tmp_path / "after")
        await clients[1].pull(exposed)
        again = await clients[0].expose()
        return refusals, version, before == after, exposed, again, len(whole)

    refusals, version, unchanged, exposed, again, size = run(scenario)

    assert [True, False, False] == ["expected hash" in one for one in refusals]
    assert [False, True, True] == [f"expected {size} bytes" in one for one in refusals]
    assert 0 == version
    assert unchanged
    assert exposed == again


def test_a_file_outside_the_shared_folder_is_never_read(run, cells):
    async def scenario(clients):
        await clients[1].enter()
        exposed = await clients[0].expose()
        *others, part = exposed.parts
        name = part.exposure.peer
        elsewhere = replace(part, exposure=replace(part.exposure, peer=f"../{name}"))
        (cells.folder / name).write_bytes((cells.share / name).read_bytes())
        with pytest.raises(TransferError) as refused:
            await clients[1].pull(replace(exposed, parts=(*others, elsewhere)))
        return str(refused.value)

    assert "expected the name of a file that has the key in it" in run(scenario)


def test_weights_that_are_exposed_no_longer_are_outdated(run, cells):
    async def scenario(clients):
        await clients[1].enter()
        exposed = await clients[0].expose()
        path = cells.share / exposed.parts[0].exposure.peer
        path.rename(cells.share / "away")
        with pytest.raises(ExposureGone):
            await clients[1].pull(exposed)
        (cells.share / "away").rename(path)

    run(scenario)


def test_an_engine_takes_what_another_cell_offers_if_it_has_the_digest(run, tmp_path):
    async def scenario(clients):
        found, _ = await weights(clients[0], tmp_path / "new")
        given = await clients[0].offer(tmp_path / "new", version=4)
        again = await clients[0].offer(tmp_path / "new", version=4)
        nowhere = tmp_path / "nowhere"
        with pytest.raises(CellError, match="expected weights with digest"):
            await clients[1].load(nowhere, version=4, digest="0" * 32, given=given)
        with pytest.raises(TransferError, match="expected version 5, found 4"):
            await clients[1].load(nowhere, version=5, digest=found, given=given)
        before = (await clients[1].health()).engine_version
        loaded = await clients[1].load(nowhere, version=4, digest=found, given=given)
        after = (await clients[1].health()).engine_version
        # Whatever is offered next takes the place of this.
        await clients[0].offer(tmp_path / "new", version=5)
        with pytest.raises(ExposureGone):
            await clients[1].load(nowhere, version=4, digest=found, given=given)
        return found, given == again, before, loaded.digest, after

    found, is_same, before, loaded, after = run(scenario)

    assert is_same
    assert found == loaded
    assert before != after == 4


def test_claims_of_three_cells_become_one_update(run, batch, tmp_path):
    """The sum of gradients is where it should be, and so are the weights afterwards (SPEC 3.3)."""

    async def scenario(clients):
        await join(clients, 0, 1, 2)
        await asyncio.gather(*(one.form_groups(0, [0, 1, 2]) for one in clients.values()))
        version = (await clients[0].health()).trainer_version
        for claim in range(6):
            await train(clients[claim % 3], batch, claim)
        sent = await reduced(clients, 0, {0: [0, 3], 1: [1, 4], 2: [2, 5]})
        step = await clients[0].step(version)
        await asyncio.gather(
            *(one.broadcast_weights(0, [0, 1, 2], step.version) for one in clients.values())
        )
        digests = {(await weights(one, tmp_path / f"{cell}"))[0] for cell, one in clients.items()}
        versions = {(await one.health()).trainer_version for one in clients.values()}
        # Nothing of the batch is left in any sum.
        empty = await reduced(clients, 0, {0: [], 1: [], 2: []})
        return version, sent, step, digests, versions, empty

    version, sent, step, digests, versions, empty = run(scenario)

    assert 0 == sent[0]
    assert sent[1] == sent[2] > 0
    assert step.gradient_norm > 0
    assert {version + 1} == versions
    assert 1 == len(digests)
    assert sent == empty


def test_a_sum_that_is_not_of_its_leases_goes_nowhere(run, batch):
    async def scenario(clients):
        await join(clients, 0)
        await train(clients[0], batch, 0)
        refusals = []
        for leases in ({0: []}, {0: [0, 1]}, {0: [9]}, {1: [0]}):
            with pytest.raises(CellError) as refused:
                await clients[0].reduce(0, [0], leases)
            refusals.append(str(refused.value))
        with pytest.raises(CellError, match="lease 0 is in the sum already") as twice:
            await train(clients[0], batch, 0)
        return refusals, twice.value.retryable, await clients[0].reduce(0, [0], {0: [0]})

    refusals, retryable, sent = run(scenario)

    assert [True] * 4 == ["not of its leases" in one for one in refusals]
    assert not retryable
    assert 0 == sent


def test_a_claim_that_cannot_be_trained_leaves_the_sum_as_it_was(run, batch):
    async def scenario(clients):
        await join(clients, 0)
        await train(clients[0], batch, 0)
        with pytest.raises(CellError, match="expected the bytes of a claim"):
            await clients[0].train(b"garbage", lease=1, num_executions=1, scores=None)
        return await clients[0].reduce(0, [0], {0: [0]})

    assert 0 == run(scenario)


def test_a_step_from_another_version_is_refused(run):
    async def scenario(clients):
        await join(clients, 0, 1)
        version = (await clients[0].health()).trainer_version
        with pytest.raises(CellError, match=f"from version {version + 1}") as refused:
            await clients[0].step(version + 1)
        with pytest.raises(CellError, match="has no optimizer"):
            await clients[1].step((await clients[1].health()).trainer_version)
        return refused.value.retryable, version, (await clients[0].health()).trainer_version

    retryable, before, after = run(scenario)

    assert not retryable
    assert before == after


def test_a_sum_outlives_a_rest_only_where_it_is_kept(run, batch):
    """SPEC 2.5."""

    async def scenario(clients):
        found = []
        for keep in (True, False):
            await join(clients, 0)
            await train(clients[0], batch, 0)
            await clients[0].leave(keep_sum=keep)
            with pytest.raises(CellError, match="restore it first"):
                await train(clients[0], batch, 1)
            await clients[0].enter()
            held = await reduced(clients, 0, {0: [0]})
            found.append(isinstance(held[0], int))
            await clients[0].leave(keep_sum=False)
        return found

    assert [True, False] == run(scenario)


def test_an_engine_acknowledges_the_digest_of_what_it_loaded(run, tmp_path):
    """SPEC 2.4."""

    async def scenario(clients):
        folder = tmp_path / "v5"
        saved = await clients[0].save(folder)
        again = await clients[0].save(folder)
        with pytest.raises(CheckpointError, match="expected a checkpoint of version 99"):
            await clients[0].save(folder, version=99)
        loaded = await clients[2].load(folder, version=5, digest=saved.digest)
        with pytest.raises(CellError, match="expected digest"):
            await clients[2].load(folder, version=6, digest="0" * 32)
        with pytest.raises(CellError, match="nowhere"):
            await clients[2].load(tmp_path / "nowhere", version=6, digest=saved.digest)
        return saved, again, loaded, folder, (await clients[2].health()).engine_version

    saved, again, loaded, folder, version = run(scenario)

    assert saved.digest == again.digest == loaded.digest == manifest_of(folder)["digest"]
    assert 5 == version
    assert saved.num_bytes == sum(one["num_bytes"] for one in manifest_of(folder)["shards"])


def test_an_engine_keeps_its_version_when_published_weights_are_damaged(run, tmp_path):
    """SPEC 2.4, FAULTS 27: cut short, a byte flipped, or another checkpoint in their place."""

    async def scenario(clients):
        first, folder = await clients[0].save(tmp_path / "v6"), tmp_path / "v7"
        saved = await clients[0].save(folder)
        await clients[2].load(tmp_path / "v6", version=6, digest=first.digest)
        path = folder / "model.safetensors"
        whole = path.read_bytes()
        refusals = []
        for wrong in (whole[:-1] + bytes([whole[-1] ^ 64]), whole[: len(whole) // 2], b""):
            path.write_bytes(wrong)
            with pytest.raises(CellError) as refused:
                await clients[2].load(folder, version=7, digest=saved.digest)
            refusals.append(str(refused.value))
        health = await clients[2].health()
        path.write_bytes(whole)
        await clients[2].load(folder, version=7, digest=saved.digest)
        return refusals, health, await clients[2].health()

    refusals, health, after = run(scenario)

    assert 3 == sum("expected" in one and "with hash" in one for one in refusals)
    assert (True, 6) == (health.engine_ready, health.engine_version)
    assert (True, 7) == (after.engine_ready, after.engine_version)


def test_scores_that_are_given_stand_for_the_claims_own(run, batch):
    """SPEC 8.3."""

    inside, beyond = ((Score(sum_log_ratio=one, count=13),) for one in (0.0, 13 * 5.0))

    async def scenario(clients):
        await join(clients, 0)
        own = await clients[0].score(batch.bytes[0])
        reports = [await train(clients[0], batch, 0)]
        for lease, scores in enumerate((inside, beyond), 1):
            reports.append(await train(clients[0], batch, 0, lease=lease, scores=scores))
        return own, reports

    (own,), (first, second, third) = run(scenario)

    assert own.count == first.scores[0].count == 13
    assert pytest.approx(own.sum_log_ratio, abs=1e-3) == first.scores[0].sum_log_ratio
    assert (inside, beyond) == (second.scores, third.scores)
    assert 0 != first.loss == pytest.approx(second.loss, rel=1e-5)
    assert 0 == third.loss


def test_nobody_is_answered_without_the_token(cells):
    async def work():
        answers = []
        for key in ("", "wrong", "the-token-of-the-ru"):
            async with cells.clients(key) as clients:
                for order in (clients[0].health(), clients[0].enter(), clients[0].step(0)):
                    with pytest.raises(CellError) as refused:
                        await order
                    answers.append(str(refused.value))
        return answers

    assert [True] * 9 == ["expected the run's token" in one for one in asyncio.run(work())]


@pytest.mark.parametrize(
    ("order", "body", "says"),
    [
        ("reduce", b"\xff\xfe", "expected ReduceRequest"),
        ("reduce", b"{}", "expected ReduceRequest"),
        (
            "reduce",
            b'{"epoch": 0, "members": [0], "leases": {}, "more": 1}',
            "expected ReduceRequest",
        ),
        ("step", b'{"version": "one"}', "expected StepRequest"),
        ("pull", b"[]", "expected ExposedWeights"),
        ("leave", b'{"keep_sum": 3}', "expected LeaveRequest"),
        ("checkpoint", b'{"folder": ["/x"]}', "expected SaveRequest"),
        ("save", b'{"folder": "/x", "version": "one"}', "expected SaveRequest"),
        ("train", b"{}", "expected ClaimHeader"),
        ("dance", b"{}", "no such order"),
    ],
)
def test_a_body_that_is_no_order_is_refused_by_name(run, order, body, says):
    async def scenario(clients):
        return *await posted(clients[1], order, body), await clients[1].health()

    status, text, health = run(scenario)

    assert status in (400, 404)
    assert says in text
    assert health.engine_ready


def test_a_cell_killed_in_a_reduction_fails_it_at_once_and_not_the_next(
    run, cells, batch, tmp_path
):
    """Survivors' sums are as they were, and meet in another epoch (SPEC 3.2)."""

    async def scenario(clients):
        await join(clients, 0, 1, 2)
        await clients[0].save(tmp_path / "before")
        await asyncio.gather(*(one.form_groups(1, [0, 1, 2]) for one in clients.values()))
        for claim in range(3):
            await train(clients[claim], batch, claim)
        members, leases = [0, 1, 2], {0: [0], 1: [1], 2: [2]}
        waiting = [
            asyncio.ensure_future(clients[cell].reduce(1, members, leases)) for cell in (0, 1)
        ]
        # The others wait for it in the middle of their groups.
        await asyncio.sleep(0.5)
        assert not any(one.done() for one in waiting)
        cells.kill(2)
        answers = await asyncio.gather(*waiting, return_exceptions=True)
        with pytest.raises(CellGone):
            await clients[2].health()
        old = await reduced({0: clients[0]}, 0, {0: [0]})
        await asyncio.gather(*(clients[cell].form_groups(2, [0, 1]) for cell in (0, 1)))
        sent = await reduced(clients, 2, {0: [0], 1: [1]})
        late = await reduced(clients, 1, {0: [0, 1], 1: [1]})
        norm = await clients[0].step((await clients[0].health()).trainer_version)
        del clients[2]
        return answers, old, sent, late, norm.gradient_norm

    answers, old, sent, late, norm = run(scenario)
    cells.start(2)

    assert [CellError] * 2 == [type(one) for one in answers]
    assert [0] == old
    assert 0 == sent[0] < sent[1]
    assert [True, True] == ["epoch 1 are over" in str(one) for one in late]
    assert 0 < norm
    assert pytest.approx(norm_alone(tmp_path / "before", batch, [0, 1]), rel=1e-5) == norm


def norm_alone(folder, batch, claims):
    """Of the sum that one trainer of these weights has."""
    trainer = Trainer(
        load_network(folder),
        section=TrainerConfig(),
        objective=WIDE,
        optimizer=OPTIMIZER,
    )
    for claim in claims:
        trainer.train(batch.claims[claim], num_executions=NUM_EXECUTIONS)
    return trainer.step().gradient_norm
