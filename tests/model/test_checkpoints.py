"""The checkpoints of a run folder: which is used, which is refused, which stays."""

import json
import os
import pickle
import shutil

import pytest
import torch
from tests.model.support.folders import small

from gyre.cell.checkpoint import CheckpointWriter, SingleRankCopies, read_state
from gyre.config.sections import LossConfig, OptimizerConfig, TrainerConfig
from gyre.model.checkpoint import save
from gyre.model.checkpoint_store import (
    Checkpoint,
    describe_file,
    listed,
    name_of,
    newest,
    prune,
    sealed,
    set_aside,
    sweep,
    verified,
)
from gyre.model.loader import load_network
from gyre.trainer.offload import Snapshot
from gyre.trainer.trainer import Trainer
from gyre.types.errors import CellError, ModelError


def a_trainer(network):
    return Trainer(
        network,
        section=TrainerConfig(),
        objective=LossConfig(),
        optimizer=OptimizerConfig(),
    )


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Versions 1 to 4, of which 4 has no optimizer's state."""
    folder = tmp_path_factory.mktemp("made")
    trainer = a_trainer(small())
    saving = CheckpointWriter(SingleRankCopies(Snapshot(trainer)), trainer.network)
    for version in (1, 2, 3):
        trainer.version = version
        saving.checkpoint(folder / name_of(version), version)
    save(small(seed=1), folder / name_of(4), version=4)
    return folder


@pytest.fixture
def folder(made, tmp_path):
    shutil.copytree(made, tmp_path / "checkpoints")
    return tmp_path / "checkpoints"


def flip(path, at=-1):
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def versions(folder):
    return [(one.version, one.has_optimizer) for one in listed(folder)]


def test_checkpoints_are_listed_with_what_they_hold(folder):
    (folder / "v000009.damaged").mkdir()
    (folder / ".v000010.abc").mkdir()
    (folder / "v000011").mkdir()

    assert [(1, True), (2, True), (3, True), (4, False)] == versions(folder)
    assert [] == listed(folder / "none")


def test_the_newest_is_used_and_one_without_moments_where_none_are_wanted(folder):
    weights, whole = newest(folder), newest(folder, with_optimizer=True)

    assert (4, False) == (weights.version, weights.has_optimizer)
    assert (3, True) == (whole.version, whole.has_optimizer)
    assert verified(folder / "v000003") == whole == newest(folder, most=3)
    assert Checkpoint(
        version=3, folder=folder / "v000003", digest=whole.digest, has_optimizer=True
    ) == whole  # fmt: skip
    assert None is newest(folder, most=0)


def test_the_manifest_of_the_state_says_what_it_is_of(folder):
    state = json.loads((folder / "v000003" / "optimizer" / "optimizer.json").read_text())

    assert (3, 0, 1, 1) == tuple(state[one] for one in ("version", "num_steps", "stages", "shards"))
    assert newest(folder, most=3).digest == state["digest"]


def newest_of(folder):
    """With its optimizer's state, and what was refused on the way."""
    heard = []
    found = newest(folder, with_optimizer=True, refused=lambda one, why: heard.append((one, why)))
    return found, heard


def files_of(made, version):
    root = made / name_of(version)
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


def test_a_flipped_byte_in_any_file_is_refused_by_name_and_the_one_before_is_used(made, folder):
    files = files_of(made, 3)
    assert {"model.safetensors", "config.json", "gyre.json", "optimizer/optimizer.json"} < {*files}
    for name in files:
        path = folder / "v000003" / name
        before = path.read_bytes()
        for at in (0, len(before) // 2, len(before) - 3):
            flip(path, at)
            found, heard = newest_of(folder)

            assert 2 == found.version, (name, at)
            assert [folder / "v000003"] == [one for one, _ in heard]
            assert str(path) in heard[0][1]
            path.write_bytes(before)
    assert 3 == newest(folder, with_optimizer=True).version


def test_a_file_cut_at_any_of_some_places_is_refused(folder):
    for name in ("model.safetensors", "optimizer/rank-00000-00000.safetensors"):
        path = folder / "v000003" / name
        whole = path.read_bytes()
        for size in (0, 1, 8, len(whole) // 2, len(whole) - 1):
            path.write_bytes(whole[:size])
            with pytest.raises(ModelError, match=path.name):
                verified(folder / "v000003", with_optimizer=True)
        path.write_bytes(whole)


def test_weights_are_used_without_a_state_that_is_damaged(folder):
    flip(folder / "v000003" / "optimizer" / "rank-00000-00000.safetensors")

    assert 3 == newest(folder, most=3).version
    assert 2 == newest(folder, with_optimizer=True, most=3).version


def test_a_folder_under_the_name_of_another_version_is_refused(folder):
    (folder / "v000003").rename(folder / "v000008")

    assert 2 == newest(folder, with_optimizer=True).version
    with pytest.raises(ModelError, match="expected version 8, found 3"):
        verified(folder / "v000008")
    with pytest.raises(ModelError, match="named by its version"):
        verified(folder)


def test_a_damaged_one_makes_room_for_its_version(folder):
    for _ in range(2):
        aside = set_aside(folder / "v000003")
        save(small(), folder / "v000003", version=3)

    assert folder / "v000003.damaged" == aside
    assert [(1, True), (2, True), (3, False), (4, False)] == versions(folder)
    assert (aside / "gyre.json").is_file()


@pytest.mark.parametrize(
    ("keep", "in_use", "optimizers", "left"),
    [
        (9, (), None, [(1, True), (2, True), (3, True), (4, False)]),
        (2, (), None, [(3, True), (4, False)]),
        (2, (1,), None, [(1, True), (3, True), (4, False)]),
        (1, (), None, [(3, True), (4, False)]),  # A core can begin from no other.
        (9, (), 1, [(1, False), (2, False), (3, True), (4, False)]),
        (3, (1,), 2, [(1, False), (2, True), (3, True), (4, False)]),
    ],
)
def test_the_newest_stay_and_those_in_use(folder, keep, in_use, optimizers, left):
    gone = prune(folder, keep=keep, in_use=in_use, optimizers=optimizers)

    assert left == versions(folder)
    assert [1, 2, 3, 4] == sorted([*gone, *(version for version, _ in left)])
    assert [] == sweep(folder)
    for version, has_optimizer in left:
        verified(folder / name_of(version), with_optimizer=has_optimizer)


def test_a_removal_that_was_cut_short_leaves_nothing_that_looks_whole(folder, monkeypatch):
    def killed(path):
        (path / "model.safetensors").unlink()
        raise KeyboardInterrupt

    monkeypatch.setattr(shutil, "rmtree", killed)
    with pytest.raises(KeyboardInterrupt):
        prune(folder, keep=3, in_use=())
    monkeypatch.undo()

    assert [(2, True), (3, True), (4, False)] == versions(folder)
    assert [folder / ".v000001.removed"] == sweep(folder)


def test_what_a_crash_left_is_swept_and_nothing_else(folder):
    before = sorted(folder.rglob("*"))
    for left in (folder / ".v000005.x1" / "v000005", folder / "v000004" / ".optimizer.x2" / "a"):
        left.mkdir(parents=True)
        (left / "model.safetensors").write_bytes(b"half")

    assert 2 == len(sweep(folder))
    assert before == sorted(folder.rglob("*"))
    assert [] == sweep(folder / "none")


class Payload:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.system, (f"touch {self.path}",)


def forge(folder, before, after):
    """The manifest names one file in place of another, and its seal holds."""
    for path in [*folder.glob("gyre.json"), *folder.glob("optimizer.json")]:
        text = path.read_text().replace(before.xxh3, after.xxh3)
        sizes = [f'"num_bytes": {one.num_bytes}' for one in (before, after)]
        plain = json.loads(text.replace(*sizes))
        del plain["seal"]
        path.write_text(sealed(plain))


def load_all(folder):
    load_network(folder, device="cpu", dtype=torch.float32)
    read_state(folder, 0, stages=1, shards=1)


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer/rank-00000-00000.safetensors"])
@pytest.mark.parametrize("is_hashed", [False, True])
def test_a_pickle_in_place_of_tensors_is_refused_and_runs_nothing(
    folder, tmp_path, name, is_hashed
):
    """Also by one whose hash was put into the manifest (FAULTS 41)."""
    path = folder / "v000003" / name
    before = describe_file(path)
    path.write_bytes(pickle.dumps(Payload(tmp_path / "ran")))
    if is_hashed:
        forge(path.parent, before, describe_file(path))
        verified(folder / "v000003", with_optimizer=True)

    with pytest.raises(ModelError, match=path.name):
        load_all(folder / "v000003")
    assert not (tmp_path / "ran").exists()


def test_other_files_that_hold_code_are_never_opened(folder, tmp_path):
    for name in ("pytorch_model.bin", "model.pt", "optimizer/rank-00000.pt", "modeling.py"):
        data = pickle.dumps(Payload(tmp_path / "ran"))
        (folder / "v000003" / name).write_bytes(data)

    load_network(folder / "v000003", device="cpu", dtype=torch.float32)
    assert 3 == newest(folder, with_optimizer=True).version
    assert not (tmp_path / "ran").exists()


def test_a_manifest_reaches_no_file_of_another_folder(folder):
    path = folder / "v000003" / "optimizer" / "optimizer.json"
    plain = json.loads(path.read_text().replace("rank-0", "../../v000002/optimizer/rank-0"))
    del plain["seal"]
    path.write_text(sealed(plain))

    with pytest.raises(ModelError, match=r"v000003/optimizer/rank-00000-00000\.safetensors"):
        verified(folder / "v000003", with_optimizer=True)


def test_a_satellite_has_no_state_to_write(tmp_path):
    trainer = Trainer(small(), section=TrainerConfig(), objective=LossConfig(), optimizer=None)
    saving = CheckpointWriter(SingleRankCopies(Snapshot(trainer)), trainer.network)
    with pytest.raises(CellError, match="no optimizer"):
        saving.checkpoint(tmp_path / "v000000", 0)

    assert [(0, False)] == versions(tmp_path)
