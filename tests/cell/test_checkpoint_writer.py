"""A cell's checkpoints are written beside its work, and the next step from one is the same."""

import errno
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Event

import pytest
import torch
from tests.cell.support.live_cells import Started
from tests.controller.support.forked_cells import fork_clients
from tests.model.support.folders import small
from tests.trainer.support.scenes import NUM_EXECUTIONS, a_scene, a_trainer
from tests.waiting import PATIENCE_S

from gyre.cell.checkpoint import CheckpointWriter, SingleRankCopies, planned_network, read_state
from gyre.cell.main import with_checkpoint_version
from gyre.cell.ranks import protocol
from gyre.cell.ranks.main import open_part
from gyre.cell.ranks.multi_rank_worker import joined
from gyre.cell.training_worker import SingleRankWorker
from gyre.model.checkpoint import save
from gyre.model.checkpoint_store import newest, sweep, verified
from gyre.model.loader import load_network
from gyre.model.network import Network
from gyre.trainer.offload import Snapshot
from gyre.transports.shared_memory import SharedTransport
from gyre.types.errors import CheckpointError, ModelError

cells_are_forked = fork_clients("gyre.cell.main")

LIMIT_S = PATIENCE_S
"""For what another thread does at once."""


class Held(SingleRankCopies):
    """Copies whose next write or copy waits until it is let go."""

    def __init__(self, snapshot):
        super().__init__(snapshot)
        self.began, self.free = Event(), Event()
        self.holds = "write"

    def _wait(self, at):
        if at == self.holds:
            self.began.set()
            assert self.free.wait(LIMIT_S)

    def write(self, folder):
        self._wait("write")
        return super().write(folder)

    def weights(self):
        self._wait("weights")
        return super().weights()


@pytest.fixture(scope="module")
def scene():
    made = a_scene("qwen3")
    made.network = Network(made.network.module.float())
    return made


class Core:
    """A trainer and its checkpoints."""

    def __init__(self, scene, network=None):
        self.scene = scene
        self.trainer = a_trainer(scene if network is None else network)
        self.snapshot = Snapshot(self.trainer)
        self.copies = Held(self.snapshot)
        self.copies.holds = None
        self.saving = CheckpointWriter(self.copies, self.trainer.network)

    def step(self):
        for claim in self.scene.claims():
            self.trainer.train(claim, num_executions=NUM_EXECUTIONS)
        with self.snapshot.changing():
            return self.trainer.step()

    def checkpoint(self, folder, version=None):
        return self.saving.checkpoint(folder, self.trainer.version if version is None else version)


def state_of(trainer):
    held = {name: one.detach().clone() for name, one in trainer.export().tensors.items()}
    weights = {name: one.detach() for name, one in trainer.network.module.named_parameters()}
    return held | {name: one.clone() for name, one in weights.items()}


def differing(one, other):
    assert one.keys() == other.keys()
    return [name for name in one if not torch.equal(one[name], other[name])]


def recalled(scene, folder, dtype=torch.float32):
    """A core whose process began with the checkpoint."""
    core = Core(scene, load_network(folder, device="cpu", dtype=dtype))
    state = read_state(folder, 0, stages=1, shards=1)
    core.trainer.load(state, version=verified(folder).version)
    return core


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_step_after_a_checkpoint_is_the_one_of_a_core_that_was_never_stopped(
    tmp_path, scene, dtype
):
    save(scene.network, tmp_path / "first", version=0, dtype=dtype)
    core = Core(scene, load_network(tmp_path / "first", device="cpu", dtype=dtype))
    core.step()
    saved = core.checkpoint(tmp_path / "v000001")
    other = recalled(scene, tmp_path / "v000001", dtype)
    began = state_of(core.trainer), state_of(other.trainer)
    reports = core.step(), other.step()

    assert (dtype, dtype) == (core.trainer.network.dtype, other.trainer.network.dtype)
    assert [] == differing(*began)
    assert [] == differing(state_of(core.trainer), state_of(other.trainer))
    assert [] != differing(began[0], state_of(core.trainer))
    assert (2, reports[0].gradient_norm) == (reports[1].version, reports[1].gradient_norm)
    assert saved.digest == verified(tmp_path / "v000001", with_optimizer=True).digest


def test_a_checkpoint_of_a_trainer_at_rest_is_the_same(tmp_path, scene):
    core = Core(scene)
    core.step()
    core.trainer.offload(weights=True)
    at_rest = core.checkpoint(tmp_path / "rest")
    core.trainer.reload()

    assert at_rest.digest == core.checkpoint(tmp_path / "awake").digest
    names = ("model.safetensors", "optimizer/rank-00000-00000.safetensors")
    for name in names:
        assert (tmp_path / "rest" / name).read_bytes() == (tmp_path / "awake" / name).read_bytes()


def test_steps_go_on_while_a_checkpoint_is_written_and_do_not_change_it(tmp_path, scene):
    core = Core(scene)
    core.step()
    core.copies.holds = "write"
    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(core.checkpoint, tmp_path / "v000001")
        assert core.copies.began.wait(LIMIT_S)
        before = state_of(core.trainer)
        core.step()
        after = core.step()
        core.copies.free.set()
        saved = writing.result(LIMIT_S)

    assert 3 == after.version
    assert saved.has_optimizer
    assert [] == differing(before, state_of(recalled(scene, tmp_path / "v000001").trainer))


def held_export(trainer):
    """Copies of the trainer have begun once the first is set, and go on with the second."""
    entered, free = Event(), Event()
    export = trainer.export

    def slow_export():
        entered.set()
        assert free.wait(LIMIT_S)
        return export()

    trainer.export = slow_export
    return entered, free


def test_a_trainer_comes_back_after_a_copy_that_is_under_way(tmp_path, scene):
    """What is just on its way to the device would be missing in the copy."""
    trainer = a_trainer(scene)
    learning = SingleRankWorker(
        trainer, None, transport=SharedTransport(tmp_path, owner="cell-0"), cell=0
    )
    learning.offload()
    entered, free = held_export(trainer)
    with ThreadPoolExecutor(2) as pool:
        writing = pool.submit(learning.checkpoint, tmp_path / "v000000", 0)
        assert entered.wait(LIMIT_S)
        restoring = pool.submit(learning.reload)
        with pytest.raises(TimeoutError):
            restoring.result(0.1)
        was_resting = trainer.is_resting
        free.set()
        restoring.result(LIMIT_S)
        assert writing.result(LIMIT_S).has_optimizer

    assert (True, False) == (was_resting, trainer.is_resting)


def test_a_step_waits_for_the_copy_and_says_how_long(tmp_path, scene):
    core = Core(scene)
    entered, free = held_export(core.trainer)
    with ThreadPoolExecutor(2) as pool:
        writing = pool.submit(core.checkpoint, tmp_path / "v000000")
        assert entered.wait(LIMIT_S)
        stepping = pool.submit(core.step)
        with pytest.raises(TimeoutError):
            stepping.result(0.1)
        assert 0 == core.trainer.version
        free.set()
        stepping.result(LIMIT_S)
        saved = writing.result(LIMIT_S)

    assert 0 == verified(tmp_path / "v000000", with_optimizer=True).version
    assert 0 < saved.copied_s <= saved.seconds
    assert 0 < core.snapshot.stalled_s


def test_one_that_is_overtaken_by_a_step_gives_way_and_the_next_is_written(tmp_path, scene):
    core = Core(scene)
    core.copies.holds = "write"
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(core.checkpoint, tmp_path / "v000000", 0)
        assert core.copies.began.wait(LIMIT_S)
        core.step()
        second = pool.submit(core.checkpoint, tmp_path / "v000001", 1)
        core.step()
        core.copies.free.set()
        first.result(LIMIT_S)
        with pytest.raises(CheckpointError, match="version 1: the trainer has version 2 by now"):
            second.result(LIMIT_S)
    core.checkpoint(tmp_path / "v000002", 2)

    assert ["v000000", "v000002"] == sorted(path.name for path in tmp_path.iterdir())
    assert 2 == newest(tmp_path, with_optimizer=True).version


def test_publication_waits_for_the_weights_and_not_for_the_moments(tmp_path, scene):
    core = Core(scene)
    core.copies.holds = "write"
    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(core.checkpoint, tmp_path / "v000000")
        assert core.copies.began.wait(LIMIT_S)
        saved = core.saving.save(tmp_path / "v000000", 0)
        was_done = writing.done()
        core.copies.free.set()
        whole = writing.result(LIMIT_S)

    assert (False, False, True) == (was_done, saved.has_optimizer, whole.has_optimizer)
    assert saved.digest == whole.digest
    assert saved.num_bytes < whole.num_bytes
    assert whole.digest == core.checkpoint(tmp_path / "v000000").digest


def outcome(act, folder):
    try:
        act(folder)
    except CheckpointError as error:
        return str(error) if error.retryable else "not to be tried again"
    return "written"


def test_a_disk_that_is_full_costs_the_checkpoint_and_nothing_else(tmp_path, scene, monkeypatch):
    """At each sync in turn: what was there before is there, and the next is written."""
    core = Core(scene)
    core.checkpoint(tmp_path / "v000000")
    core.step()
    before = state_of(core.trainer)
    real, outcomes = os.fsync, []
    while not outcomes or outcomes[-1] != "written":
        left = len(outcomes)

        def full(fd):
            nonlocal left
            left -= 1
            if left < 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return real(fd)

        monkeypatch.setattr(os, "fsync", full)
        outcomes.append(outcome(core.checkpoint, tmp_path / "v000001"))
        monkeypatch.undo()
        if outcomes[-1] != "written":
            assert 0 == newest(tmp_path, with_optimizer=True).version
            assert [] == sweep(tmp_path)

    assert 5 < len(outcomes) < 50
    assert all("No space left on device" in one for one in outcomes[:-1])
    assert [] == differing(before, state_of(core.trainer))
    assert 1 == newest(tmp_path, with_optimizer=True).version


def test_published_weights_stay_when_a_replay_gives_other_bits(tmp_path, scene):
    core = Core(scene)
    core.step()
    published = save(small("qwen3", seed=5), tmp_path / "v000001", version=1)
    saved = core.checkpoint(tmp_path / "v000001")
    state = read_state(tmp_path / "v000001", 0, stages=1, shards=1)

    assert published.digest == saved.digest == verified(tmp_path / "v000001").digest
    assert saved.has_optimizer
    assert [] == differing(core.trainer.export().tensors, state.tensors)


def test_a_folder_of_another_version_is_refused_and_left(tmp_path, scene):
    core = Core(scene)
    core.checkpoint(tmp_path / "v000000")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    core.step()
    for act in (core.checkpoint, lambda folder: core.saving.save(folder, 1)):
        with pytest.raises(CheckpointError, match="of version 1, found version 0"):
            act(tmp_path / "v000000")

    assert before == {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}


def test_a_state_of_another_layout_is_refused_by_name(tmp_path, scene):
    Core(scene).checkpoint(tmp_path / "v000000")

    with pytest.raises(ModelError, match="of 2 stages of 1 shards, found that of 1 of 1"):
        read_state(tmp_path / "v000000", 1, stages=2, shards=1)
    with pytest.raises(ModelError, match="expected the optimizer's state, found none"):
        read_state(tmp_path, 0, stages=1, shards=1)


def test_a_core_begins_with_the_version_of_a_checkpoint_that_has_its_state(tmp_path, scene):
    (tmp_path / "cell").mkdir()
    plan = Started(tmp_path / "cell", "tiny").plan(0)
    core = Core(scene)
    core.step()
    core.checkpoint(tmp_path / "v000001")
    save(scene.network, tmp_path / "v000002", version=2)
    whole, bare, none = (
        replace(plan, checkpoint=tmp_path / name) for name in ("v000001", "v000002", "v000003")
    )

    assert plan == with_checkpoint_version(plan)
    assert (1, str(tmp_path / "v000001")) == (
        with_checkpoint_version(whole).version,
        with_checkpoint_version(whole).source,
    )
    assert 2 == with_checkpoint_version(replace(bare, optimizer=None)).version
    with pytest.raises(
        ModelError, match="v000002/optimizer: expected the optimizer's state, found none"
    ):
        with_checkpoint_version(bare)
    with pytest.raises(ModelError, match="v000003: expected a checkpoint, found no manifest"):
        with_checkpoint_version(none)


def test_a_rank_that_cannot_write_says_that_it_is_the_checkpoint(tmp_path, scene):
    """And not the cell, which goes on."""
    (tmp_path / "cell").mkdir()
    save(scene.network, tmp_path / "model", version=0)
    plan = Started(tmp_path / "cell", tmp_path / "model").plan(0)
    part = open_part(plan, 0, tmp_path / "store", planned_network(plan))
    part.execute(protocol.CopyCommand(version=0))
    with pytest.raises(CheckpointError, match="nowhere: the state of rank 0 cannot") as refused:
        part.execute(protocol.WriteOptimizerCommand(folder=str(tmp_path / "nowhere")))
    again = part.execute(protocol.WriteOptimizerCommand(folder=str(tmp_path)))
    part.drop()

    assert refused.value.retryable
    assert ["rank-00000-00000.safetensors"] == [one.file for one in again.files]


def test_parts_of_ranks_become_whole_weights():
    wide, tall, norm = torch.randn(4, 6), torch.randn(6, 4), torch.randn(3)
    parts = [
        {"wide": wide[:2], "tall": tall[:, :2], "norm": norm},
        {"wide": wide[2:], "tall": tall[:, 2:], "norm": norm.clone()},
        {"head": wide, "tied": tall},
    ]
    shapes = {"wide": wide.shape, "tall": tall.shape, "norm": norm.shape, "head": wide.shape}
    found = joined(parts, shapes)

    assert [] == differing({"wide": wide, "tall": tall, "norm": norm, "head": wide}, found)
    for wrong in (parts[1:], parts[:1], []):
        with pytest.raises(CheckpointError, match="wide: expected parts of shape"):
            joined(wrong, shapes)
