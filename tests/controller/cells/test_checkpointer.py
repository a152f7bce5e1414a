"""Checkpoints as a run makes them: beside the training, tried again, and as few as will do."""

import asyncio
from pathlib import Path

import pytest
from tests.cell.support.fake_cells import FakeWorld
from tests.chaos_sim.weights import MOMENTS, WEIGHTS, write_optimizer, write_weights
from tests.controller.support.cells_in_memory import cells_in_memory
from tests.controller.support.fake_run_loop import FakeRunLoop
from tests.waiting import PATIENCE_S

from gyre.config.run_config import CheckpointConfig
from gyre.controller.cells import checkpointer
from gyre.controller.cells.checkpointer import Checkpointer
from gyre.model import checkpoint_store
from gyre.model.checkpoint_store import Checkpoint, name_of
from gyre.scheduler.messages import EngineLost
from gyre.types.errors import CellError, CheckpointError
from gyre.types.run_events import (
    CheckpointFailed,
    CheckpointMade,
    CheckpointRefused,
    WeightsPublished,
)


class Scene:
    """A core that writes nothing, and folders by name alone."""

    def __init__(self, folder, *, every=1):
        self.world = FakeWorld()
        self.cells = cells_in_memory(self.world, 1)
        self.loop = FakeRunLoop()
        self.heard = self.loop.recorded
        self.covered = []
        self.folder = folder
        write_weights(folder / name_of(0), version=0, weights="d")
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


def test_a_publication_that_waits_for_its_weights_says_so_at_its_first_failure(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(checkpointer, "RETRY_S", 0.0)
    heard_before = []

    async def work(scene):
        async def full():
            message = "/runs/x/checkpoints/v3: cannot be written: No space left on device"
            raise CheckpointError(message)

        async def again():
            heard_before.extend(scene.loop.alarms)
            await full()

        scene.cells[0].client.faults += [("save", full), ("save", again)]
        await scene.checkpointer.saved(3)

    scene = kept(tmp_path, work)
    waits = "version 3 was not written, and is tried again"
    full = "/runs/x/checkpoints/v3: cannot be written: No space left on device"

    assert [f"{waits}: {full}"] == heard_before
    assert [*heard_before, "version 3 is written"] == scene.loop.alarms
    assert [CheckpointFailed] == [type(one) for one in scene.heard]


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
    left = sorted(one.name for one in tmp_path.iterdir())
    assert ["v000000", "v000001.damaged", "v000002.damaged"] == left


def write(folder, *versions):
    """Whole checkpoints, with real manifests."""
    for version in versions:
        made, weights = folder / name_of(version), f"w{version}"
        write_weights(made, version=version, weights=weights)
        write_optimizer(made, version=version, weights=weights, moments=weights)


def flip(path):
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def published(scene, version, digest):
    scene.checkpointer.publish(
        Checkpoint(
            version=version,
            folder=scene.folder / name_of(version),
            digest=digest,
            has_optimizer=True,
        )
    )


def test_weights_stay_where_the_state_of_the_optimizer_alone_is_damaged(tmp_path):
    """An older state leads to the same version, by steps that are taken again."""
    write(tmp_path, 2, 3, 4)
    flip(tmp_path / name_of(4) / "optimizer" / MOMENTS)
    found = []

    async def work(scene):
        published(scene, 4, "w4")
        found.append(await scene.checkpointer.to_begin_from(4))
        assert not scene.checkpointer.is_lost

    scene = kept(tmp_path, work)

    assert [(3, True)] == [(one.version, one.has_optimizer) for one in found]
    assert "w4" == checkpoint_store.verified(tmp_path / name_of(4)).digest
    assert (tmp_path / name_of(4) / "optimizer.damaged" / MOMENTS).is_file()
    ((kind, version, reason),) = [(type(one), one.version, one.reason) for one in scene.heard]
    assert (CheckpointRefused, 4) == (kind, version)
    assert f"optimizer/{MOMENTS}: expected" in reason
    assert [f"checkpoint of version 4: {reason}"] == scene.loop.alarms


@pytest.mark.parametrize("covered", [3, 4])
def test_the_optimizer_begins_anew_where_no_state_leads_to_the_newest_weights(tmp_path, covered):
    """Steps before `covered` are forgotten, and cannot be taken again."""
    write(tmp_path, 2, 3, 4)
    for version in (3, 4):
        flip(tmp_path / name_of(version) / "optimizer" / MOMENTS)
    found = []

    async def work(scene):
        published(scene, 4, "w4")
        scene.checkpointer.covered = covered
        found.append(await scene.checkpointer.to_begin_from(4))

    scene = kept(tmp_path, work)

    assert [(4, False, "w4")] == [(one.version, one.has_optimizer, one.digest) for one in found]
    assert 4 == scene.heard[-1].version
    assert "it begins anew with the weights of this one" in scene.heard[-1].reason


def test_a_core_that_can_begin_from_nothing_is_refused_and_does_not_begin_as_another_run(tmp_path):
    write(tmp_path, 2, 3)
    flip(tmp_path / name_of(3) / WEIGHTS)

    async def work(scene):
        published(scene, 2, "w2")
        scene.checkpointer.covered = 3
        await scene.checkpointer.to_begin_from(3)

    with pytest.raises(CheckpointError, match="a sound checkpoint of version 3 to 3, found none"):
        kept(tmp_path, work)


def test_damaged_weights_are_made_again_with_another_digest_and_engines_are_told(tmp_path):
    write(tmp_path, 3, 4)
    flip(tmp_path / name_of(4) / WEIGHTS)
    found = []

    async def work(scene):
        published(scene, 4, "w4")
        found.append(await scene.checkpointer.to_begin_from(4))
        assert scene.checkpointer.is_lost
        waiting = asyncio.ensure_future(scene.checkpointer.whole())
        await asyncio.sleep(0)
        assert not waiting.done()
        await scene.checkpointer.publish_again()
        await waiting

    scene = kept(tmp_path, work)

    assert [3] == [one.version for one in found]
    assert (tmp_path / "v000004.damaged").is_dir()
    assert "digest 4" == scene.checkpointer.published.digest
    refused, told, *lost = scene.heard
    assert (CheckpointRefused, 4) == (type(refused), refused.version)
    assert (4, "digest 4") == (told.version, told.digest)
    assert [EngineLost(engine=0)] == lost


def test_weights_that_are_made_again_as_they_were_need_no_engine_to_load_them(tmp_path):
    write(tmp_path, 4)
    flip(tmp_path / name_of(4) / WEIGHTS)

    async def work(scene):
        published(scene, 4, "digest 4")
        await scene.checkpointer.check()
        assert not scene.checkpointer.is_lost

    assert [CheckpointRefused] == [type(one) for one in kept(tmp_path, work).heard]


def test_damage_is_found_once_and_waits_for_the_next_publication(tmp_path):
    """The core has gone on to other weights meanwhile."""
    write(tmp_path, 4)
    flip(tmp_path / name_of(4) / WEIGHTS)

    async def work(scene):
        async def other():
            message = "the trainer has version 5 by now"
            raise CheckpointError(message, retryable=False)

        scene.cells[0].client.faults += [("save", other)] * 3
        published(scene, 4, "w4")
        await asyncio.gather(*(scene.checkpointer.check() for _ in range(3)))
        assert scene.checkpointer.is_lost
        published(scene, 5, "w5")
        assert not scene.checkpointer.is_lost

    assert [CheckpointRefused] == [type(one) for one in kept(tmp_path, work).heard]


def test_a_digest_that_nobody_wrote_down_takes_the_place_of_the_one_before(tmp_path):
    """The controller died after the core had made the weights again."""
    write(tmp_path, 3, 4)

    async def work(scene):
        published(scene, 4, "before")
        assert 4 == (await scene.checkpointer.to_begin_from(4)).version
        assert scene.checkpointer.is_lost
        await scene.checkpointer.publish_again()

    scene = kept(tmp_path, work)
    assert [CheckpointRefused, WeightsPublished, EngineLost] == [type(one) for one in scene.heard]
    assert (tmp_path / name_of(4)).is_dir()


def test_a_damaged_checkpoint_does_not_count_as_the_one_before_the_last(tmp_path):
    """If the next is damaged too, a core begins from the sound one before both."""

    async def work(scene):
        write(tmp_path, 1)
        await scene.begin(1, 2)
        (tmp_path / name_of(2) / "optimizer").mkdir(parents=True)
        assert 1 == (await scene.checkpointer.to_begin_from(2)).version
        await scene.begin(3)

    assert [0, 1, 1] == kept(tmp_path, work).covered
