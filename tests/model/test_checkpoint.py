"""Checkpoints: whole or absent, never overwritten, and readable by other tools."""

import errno
import os
from pathlib import Path

import pytest
import torch
from tests.model.support.folders import same, small, weights_of
from transformers import AutoModelForCausalLM, AutoTokenizer

from gyre.model.checkpoint import save
from gyre.model.checkpoint_store import read_manifest
from gyre.model.loader import load_network
from gyre.model.registry import model_folder
from gyre.model.weights import digest
from gyre.types.errors import ModelError


@pytest.mark.parametrize("shard_bytes", [2**30, 4000])
@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_what_is_saved_is_what_is_loaded(tmp_path, dtype, shard_bytes):
    network = small("qwen3")
    manifest = save(network, tmp_path / "v7", version=7, dtype=dtype, shard_bytes=shard_bytes)
    loaded = load_network(tmp_path / "v7", dtype=dtype or torch.float32)

    assert manifest == read_manifest(tmp_path / "v7")
    assert 7 == manifest.version
    assert manifest.digest == digest(loaded) == digest(network, dtype=dtype)
    assert {name: tuple(one.shape) for name, one in weights_of(network).items()} == {
        one.name: one.shape for one in manifest.tensors
    }


def test_transformers_loads_a_checkpoint_with_its_tokenizer(tmp_path):
    network = load_network("tiny")
    save(network, tmp_path / "v1", version=1, dtype=torch.bfloat16)
    other = AutoModelForCausalLM.from_pretrained(tmp_path / "v1", local_files_only=True)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "v1", local_files_only=True)
    theirs = {name: one.detach() for name, one in other.named_parameters()}

    assert ["Qwen2ForCausalLM"] == other.config.architectures
    assert torch.bfloat16 == other.dtype
    assert same({name: one.bfloat16() for name, one in weights_of(network).items()}, theirs)
    assert "<|im_end|>" == tokenizer.eos_token
    assert "next_step" == tokenizer.decode(tokenizer("next_step").input_ids)


def test_a_checkpoint_of_a_checkpoint_keeps_the_tokenizer(tmp_path):
    save(load_network("tiny"), tmp_path / "v1", version=1)
    save(load_network(tmp_path / "v1"), tmp_path / "v2", version=2)
    first = (model_folder("tiny") / "tokenizer.json").read_bytes()

    assert first == (tmp_path / "v2" / "tokenizer.json").read_bytes()


def test_a_checkpoint_is_never_overwritten(tmp_path):
    save(small(), tmp_path / "v1", version=1)
    before = {path: path.read_bytes() for path in (tmp_path / "v1").iterdir()}

    with pytest.raises(ModelError, match="a checkpoint is written once"):
        save(small(seed=1), tmp_path / "v1", version=1)
    assert before == {path: path.read_bytes() for path in (tmp_path / "v1").iterdir()}


def test_a_full_disk_leaves_nothing_behind(tmp_path, monkeypatch):
    def full(fd):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ModelError, match="v1: cannot be written: No space left on device"):
        save(small(), tmp_path / "v1", version=1)

    assert [] == list(tmp_path.iterdir())


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")

    with pytest.raises(ModelError, match="v1: cannot be written"):
        save(small(), tmp_path / "file" / "v1", version=1)


def test_a_kill_while_saving_leaves_no_folder_of_that_name(tmp_path, monkeypatch):
    """Everything is written aside; the name appears with one rename, after all is on the disk."""
    steps = []
    rename, fsync = Path.rename, os.fsync
    monkeypatch.setattr(Path, "rename", lambda *way: (steps.append(way), rename(*way))[1])
    monkeypatch.setattr(os, "fsync", lambda fd: (steps.append("sync"), fsync(fd))[1])
    save(small(), tmp_path / "v1", version=1)
    last = max(at for at, step in enumerate(steps) if step != "sync")

    assert tmp_path / "v1" == steps[last][1]
    assert {"sync"} == set(steps[last - 4 : last])
    assert ["sync"] == steps[last + 1 :]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "expected the manifest"),
        ("[]", "expected the manifest"),
        ('{"format": 3}', "expected format 2, found 3"),
        ('{"format": 1}', "expected the manifest"),
        ('{"format": 1, "version": "a", "dtype": 1, "digest": "", "shards": [], "tensors": []}',
         "fields of other types"),
    ],
)  # fmt: skip
def test_a_manifest_that_is_none_is_refused(tmp_path, text, reason):
    save(small(), tmp_path / "v1", version=1)
    (tmp_path / "v1" / "gyre.json").write_text(text)

    with pytest.raises(ModelError, match=reason):
        load_network(tmp_path / "v1")


def test_a_file_of_a_checkpoint_that_is_missing_is_named(tmp_path):
    save(small(), tmp_path / "v1", version=1)
    (tmp_path / "v1" / "model.safetensors").unlink()

    with pytest.raises(ModelError, match=r"model.safetensors: expected \d+ bytes: No such file"):
        load_network(tmp_path / "v1")
