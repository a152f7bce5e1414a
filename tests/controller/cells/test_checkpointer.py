"""Checkpoints as a run makes them: beside the training, tried again, and as few as will do."""

import asyncio
from pathlib import Path

import pytest
from tests.cell.support.fake_cells import FakeWorld
from tests.controller.support.cells_in_memory import cells_in_memory
from tests.controller.support.fake_run_loop import FakeRunLoop
from tests.waiting import PATIENCE_S

from gyre.config.run_config import CheckpointConfig
from gyre.controller.cells.checkpointer import Checkpointer
from gyre.model import checkpoint_store
from gyre.model.checkpoint_store import Checkpoint, name_of
from gyre.types.errors import CellError, CheckpointError
from gyre.types.run_events import CheckpointFailed, CheckpointMade, CheckpointRefused


class Scene:
    """A core that writes nothing, and folders by name alone."""

    def __init__(self, folder, *, every=1):
        self.world = FakeWorld()
        self.cells = cells_in_memory(self.world, 1)
        self.loop = FakeRunLoop()
        self.heard = self.loop.recorded
        self.covered = []
        self.folder = folder
        self.checkpointer = Checkpointer(
            self.loop, self.cells, folder=folder, section=CheckpointConfig(keep=2, every=every)
        )
        self.checkpointer.publish(
            Checkpoint(version=0, folder=folder / name_of(0), digest="d", has_optimizer=False)
        )
        self.checkpointer.acknowledged(0)

    async def begin(self, *versions):
        for version in versions:
            self.checkpointer.begin(version)
            await asyncio.gather(*self.loop.tasks)
            self.covered.append(self.checkpointer.covered)


def kept(folder, work, **changed):
    async def live():
        scene = Scene(folder, **changed)
        await work(scene)
        return scene

    return asyncio.run(live())


def test_the_steps_before_the_last_checkpoint_but_one_need_no_replay(tmp_path):
    """The last may turn out to be damaged."""
    scene = kept(tmp_path, lambda scene: scene.begin(1, 2, 3))

    assert [1, 2, 3] == [one.version for one in scene.heard]
    assert [0, 1, 2] == scene.covered


def test_only_every_so_many_steps_make_one(tmp_path):
    scene = kept(tmp_path, lambda scene: scene.begin(1, 2, 3, 4), every=2)

    assert [2, 4] == [one.version for one in scene.heard]


@pytest.mark.parametrize("kind", [CheckpointError, CellError])
def test_one_that_fails_is_said_to_and_the_next_is_made(tmp_path, kind):
    async def work(scene):
        async def full():
            message = "no space left, or an answer that is none"
            raise kind(message)

        scene.cells[0].client.faults.append(("checkpoint", full))
        await scene.begin(1, 2)

    scene = kept(tmp_path, work)

    assert [CheckpointFailed, CheckpointMade] == [type(one) for one in scene.heard]
    assert [0, 0] == scene.covered


def test_a_core_that_dies_meanwhile_is_for_others_to_notice(tmp_path):
    async def work(scene):
        scene.cells[0].client.faults.append(("checkpoint", "die"))
        await scene.begin(1)

    assert [] == kept(tmp_path, work).heard


def test_what_can_never_be_written_is_not_tried_for_ever(tmp_path):
    async def work(scene):
        async def other():
            message = "of another version"
            raise CheckpointError(message, retryable=False)

        scene.cells[0].client.faults.append(("save", other))
        await scene.checkpointer.saved(1)

    with pytest.raises(CheckpointError, match="another version"):
        kept(tmp_path, work)


def test_what_is_published_stays_until_the_journal_knows_the_next(tmp_path, monkeypatch):
    """A controller that ends in between goes on with what the journal says."""
    asked = []
    monkeypatch.setattr(
        checkpoint_store, "prune", lambda folder, *, in_use, **_: asked.append(sorted(in_use))
    )

    async def work(scene):
        with scene.checkpointer.using(7):
            scene.checkpointer.publish(
                Checkpoint(version=2, folder=Path("v"), digest="d", has_optimizer=True)
            )
            await scene.checkpointer.prune()
        scene.checkpointer.acknowledged(2)
        await scene.checkpointer.prune()

    kept(tmp_path, work)

    assert [[0, 2, 7], [2]] == asked


def test_files_are_removed_by_one_at_a_time(tmp_path, monkeypatch):
    """Two who remove one folder would each find files of it gone."""
    at_once, loops = [], []

    def prune(folder, **_):
        at_once.append("begins")
        # Whoever could begin meanwhile would.
        for _ in range(10):
            asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loops[0]).result(PATIENCE_S)
        at_once.append("ends")

    monkeypatch.setattr(checkpoint_store, "prune", prune)

    async def work(scene):
        loops.append(asyncio.get_running_loop())
        await asyncio.gather(*(scene.checkpointer.prune() for _ in range(3)))

    kept(tmp_path, work)

    assert ["begins", "ends"] * 3 == at_once


def test_a_core_begins_from_none_that_is_damaged(tmp_path):
    """It is set aside, so that its version can be written again, and reported."""
    for version in (1, 2):
        (tmp_path / name_of(version) / "optimizer").mkdir(parents=True)

    async def work(scene):
        assert await scene.checkpointer.to_begin_from(2) is None

    scene = kept(tmp_path, work)

    assert [(CheckpointRefused, 2), (CheckpointRefused, 1)] == [
        (type(one), one.version) for one in scene.heard
    ]
    assert ["v000001.damaged", "v000002.damaged"] == sorted(one.name for one in tmp_path.iterdir())


def test_a_damaged_checkpoint_does_not_count_as_the_one_before_the_last(tmp_path):
    """If the next is damaged too, a core begins from the sound one before both."""

    async def work(scene):
        await scene.begin(1, 2)
        (tmp_path / name_of(2) / "optimizer").mkdir(parents=True)
        assert await scene.checkpointer.to_begin_from(2) is None
        await scene.begin(3)

    assert [0, 1, 1] == kept(tmp_path, work).covered
