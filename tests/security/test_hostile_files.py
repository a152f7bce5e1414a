"""Files that somebody else made: names that lead out, sizes that lie, programs in disguise."""

import asyncio
import json
import os
import pickle
import struct
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save
from tests.inference.support import slow_engine
from tests.inference.support.serving import served, write_model

from gyre.batching.group_packer import unpacked as claim_of
from gyre.cell.ranks.worker import read_shard
from gyre.inference.kv_transfer import unpacked as blocks_of
from gyre.model.checkpoint_store import Shard
from gyre.model.loader import load_network
from gyre.rewards.judge import WorkspaceExcerpts
from gyre.rollout.workspace import Workspace
from gyre.storage.wal import WalEntry, WriteAheadLog, entries
from gyre.tasks.harbor import HarborTasks
from gyre.types.errors import GyreError, LogDamaged, ModelError, RequestError

LENGTHS = (0, 1, 2**31, 2**40, 2**63 - 1, 2**64 - 1)


class Payload:
    """A pickle that makes a file when it is read."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.system, (f"touch {self.path}",)


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin", "config.json"])
def test_a_pickle_in_a_model_folder_runs_nothing(name, tmp_path):
    """FAULTS 41."""
    folder = write_model(tmp_path / "model", slow_engine.network())
    (folder / "model.safetensors").unlink()
    trap = tmp_path / "sprung"
    (folder / name).write_bytes(pickle.dumps(Payload(trap)))
    with pytest.raises(ModelError):
        load_network(folder)

    assert not trap.exists()
    pickle.loads((folder / name).read_bytes())
    assert trap.exists()


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("read", [claim_of, blocks_of], ids=["claim", "blocks"])
def test_a_header_that_lies_about_its_size_is_refused(read, length):
    with pytest.raises(RequestError):
        read(struct.pack("<Q", length) + b'{"__metadata__":{}}')


@pytest.mark.parametrize("length", LENGTHS)
def test_weights_whose_header_lies_about_its_size_are_refused(length, tmp_path):
    folder = write_model(tmp_path / "model", slow_engine.network())
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", length) + b"{}")
    with pytest.raises(ModelError):
        load_network(folder)


@pytest.mark.parametrize("file", ["../outside", "/etc/passwd", "a/../../outside"])
def test_weights_are_taken_from_the_shared_folder_alone(file, tmp_path):
    share = tmp_path / "share"
    share.mkdir()
    (tmp_path / "outside").write_bytes(save({"x": np.zeros(3, np.float32)}))
    with pytest.raises(ModelError):
        read_shard(share, Shard(file=file, num_bytes=1, xxh3="0"))


@pytest.mark.parametrize("name", ["../other/x", "/etc/x", "a\0b"])
def test_a_journal_of_commits_names_logs_of_its_own_folder(name, tmp_path):
    journal = WriteAheadLog(tmp_path)
    journal.write([WalEntry(log=name, offset=8, data=b"more")])
    journal.close()
    with pytest.raises(LogDamaged, match="expected the name of an execution"):
        list(entries(tmp_path))


def test_freezing_follows_no_link_and_changes_nothing_outside(tmp_path):
    """What an agent links to keeps its rights and is neither read nor copied."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_text("kept")
    (outside / "secret").chmod(0o640)
    folder = tmp_path / "execution"
    space = Workspace(folder)
    space.prepare(None)
    (space.live / "file").symlink_to(outside / "secret")
    (space.live / "folder").symlink_to(outside)
    (space.live / "itself").symlink_to(".")
    os.mkfifo(space.live / "pipe")
    state = space.freeze()
    (outside / "secret").write_text("changed")

    with space.fresh(state) as (copy, _):
        assert (Path(copy) / "file").is_symlink()
        assert (Path(copy) / "folder").is_symlink()
    assert 0o640 == (outside / "secret").stat().st_mode & 0o777
    space.tidy(keeps=False)
    assert "changed" == (outside / "secret").read_text()


@pytest.mark.parametrize("where", ["tests/test.sh", "environment/data", "instruction.md"])
def test_a_task_folder_that_links_out_is_refused(where, tmp_path):
    task = tmp_path / "tasks" / "one"
    for folder in ("tests", "environment", "solution"):
        (task / folder).mkdir(parents=True)
    (task / "task.toml").write_text('version = "1.0"\n')
    for name in ("instruction.md", "tests/test.sh", "environment/Dockerfile"):
        (task / name).write_text("x")
    (task / where).unlink(missing_ok=True)
    (task / where).symlink_to("/etc/passwd")
    with pytest.raises(GyreError, match="outside the task"):
        HarborTasks(tmp_path / "tasks").get(0)


def test_names_in_a_manifest_lead_nowhere_else(tmp_path):
    folder = write_model(tmp_path / "model", slow_engine.network())
    shard = {"file": "../model.safetensors", "num_bytes": 3, "xxh3": "0"}
    manifest = {
        **{"format": 1, "version": 1, "dtype": "float32", "digest": "d"},
        **{"shards": [shard], "tensors": []},
    }
    (folder / "gyre.json").write_text(json.dumps(manifest))
    with pytest.raises(ModelError):
        load_network(folder)


def test_a_file_without_contents_is_shown_to_a_judge_without_being_read_whole(tmp_path):
    """An agent makes one of a terabyte in no time, and on no disk."""
    with (tmp_path / "large").open("wb") as file:
        file.write(b"begins")
        file.truncate(2**40)
    shown = WorkspaceExcerpts(tmp_path, most_bytes=6).matching(["*"])

    assert f"--- large (the first 6 of {2**40} bytes)\nbegins" == shown


@pytest.mark.parametrize(
    ("asked", "where"),
    [
        ({"weight_version": "9" * 5000}, "weight_version"),
        ({"weight_version": 10**30}, "weight_version"),
        ({"model_path": "a" * 5000}, "model_path"),
        ({"model_path": "a\0b"}, "model_path"),
    ],
)
def test_weights_that_cannot_be_are_refused_by_an_engine(asked, where, tmp_path):
    async def scenario():
        async with served() as client:
            folder = write_model(tmp_path / "model", client.network)
            body = {"model_path": str(folder), "weight_version": "7"} | asked
            refused = await client.post("/update_weights_from_disk", body)
            return refused, await client.get("/health_generate")

    refused, health = asyncio.run(scenario())

    assert (400, where) == (refused.status, refused.json["error"]["param"])
    assert 200 == health.status
