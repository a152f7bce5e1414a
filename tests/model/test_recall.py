"""A core's process that begins with a checkpoint goes on as if it had never ended."""

import asyncio
import json
import shutil

import pytest
from tests.cell.support.live_cells import Batch, started, train
from tests.controller.support.forked_cells import fork_clients
from tests.waiting import until

from gyre.model.checkpoint_store import newest
from gyre.types.errors import CheckpointError

pytestmark = pytest.mark.slow
cells_are_forked = fork_clients("gyre.cell.main")


@pytest.fixture(scope="module")
def batch(tmp_path_factory):
    """Of a model whose head is its embedding, so that both ends of a pipeline hold it."""
    found = Batch(tmp_path_factory.mktemp("model") / "model", "qwen2")
    (found.model / "chat_template.jinja").write_text("{{ messages }}")
    return found


async def train_all(client, batch):
    for claim in range(len(batch.claims)):
        await train(client, batch, claim)


async def update(client, batch, version):
    await train_all(client, batch)
    return await client.step(version)


@pytest.mark.parametrize(("stages", "shards"), [(1, 1), (2, 1)])
def test_its_next_step_is_the_one_that_the_first_process_takes(tmp_path, batch, stages, shards):
    layout = {"stages": stages, "shards": shards}
    checkpoints = tmp_path / "checkpoints"

    async def first(clients):
        await clients[0].enter()
        await update(clients[0], batch, 0)
        writing = asyncio.ensure_future(clients[0].checkpoint(checkpoints / "v000001", version=1))
        await train_all(clients[0], batch)
        # It is copied by the time that it is written: a copy after the step would be refused.
        await until(lambda: writing.done() or any(checkpoints.glob("*")), "a checkpoint's files")
        norm = (await clients[0].step(1)).gradient_norm
        made = await writing
        with pytest.raises(CheckpointError, match="version 1: the trainer has version 2 by now"):
            await clients[0].checkpoint(checkpoints / "v000009", version=1)
        return made, norm, await clients[0].save(tmp_path / "first")

    async def second(clients):
        health = await clients[0].health()
        await clients[0].enter()
        norm = (await update(clients[0], batch, 1)).gradient_norm
        shutil.rmtree(checkpoints)
        return health, norm, await clients[0].save(tmp_path / "second")

    (tmp_path / "one").mkdir()
    with started(tmp_path / "one", batch.model, 0, **layout) as cells:
        made, norm, saved = cells.run(first)
    found = newest(checkpoints, with_optimizer=True)
    left = [path.name for path in checkpoints.iterdir()]
    state = json.loads((found.folder / "optimizer" / "optimizer.json").read_text())
    (tmp_path / "two").mkdir()
    with started(tmp_path / "two", batch.model, 0, checkpoint=found.folder, **layout) as cells:
        health, again_norm, again = cells.run(second)

    assert (1, made.digest, True) == (found.version, found.digest, made.has_optimizer)
    assert ["v000001"] == left
    assert (1, 1) == (health.trainer_version, health.engine_version)
    assert norm == again_norm
    assert saved.digest == again.digest != made.digest
    assert "{{ messages }}" == (tmp_path / "second" / "chat_template.jinja").read_text()
    assert (1, stages * shards) == (state["num_steps"], len(state["ranks"]))
