"""Weights that are what they learnt: a hash over every update that led to them, and on the disk.

A gradient is the multiset of what is in it, so that nothing can be lost or counted twice without
being seen. Checkpoints have the real manifests, which the real controller verifies.
"""

import hashlib
import json

from gyre.model.checkpoint_store import (
    OPTIMIZER,
    CheckpointManifest,
    StateManifest,
    describe_file,
    read_manifest,
    read_state_manifest,
    verify,
    verify_state,
    write_manifest,
    write_state_manifest,
)

FIRST = "f" * 16
"""What everybody begins with."""
WEIGHTS, MOMENTS = "model.safetensors", "rank-0.safetensors"


def next_weights(before, gradient):
    """What an update makes of weights: another sum or another order of updates gives others."""
    said = json.dumps([before, sorted(gradient)])
    return hashlib.sha256(said.encode()).hexdigest()[:16]


def write_weights(folder, *, version, weights):
    """The checkpoint is there, whole; nothing is changed about one that is there already."""
    if folder.exists():
        return
    beside = folder.with_name(f".{folder.name}.writing")
    beside.mkdir(parents=True, exist_ok=True)
    (beside / WEIGHTS).write_text(weights)
    manifest = CheckpointManifest(
        format=2,
        version=version,
        dtype="float32",
        digest=weights,
        shards=(describe_file(beside / WEIGHTS),),
        tensors=(),
    )
    write_manifest(beside, manifest)
    beside.rename(folder)


def write_optimizer(folder, *, version, weights, moments):
    """The state that goes with them, whole, after them."""
    if (folder / OPTIMIZER).exists():
        return
    beside = folder / f".{OPTIMIZER}.writing"
    beside.mkdir(exist_ok=True)
    (beside / MOMENTS).write_text(moments)
    manifest = StateManifest(
        format=1,
        version=version,
        digest=weights,
        num_steps=version,
        stages=1,
        shards=1,
        ranks=((describe_file(beside / MOMENTS),),),
    )
    write_state_manifest(beside, manifest)
    beside.rename(folder / OPTIMIZER)


def read_weights(folder):
    """Version and weights; ModelError or OSError where they are not what was written."""
    manifest = read_manifest(folder)
    if manifest is None:
        raise FileNotFoundError(folder)
    verify(folder, manifest)
    return manifest.version, manifest.digest


def read_moments(folder):
    """The optimizer's state, and the weights that it goes on from."""
    state = read_state_manifest(folder)
    if state is None:
        raise FileNotFoundError(folder / OPTIMIZER)
    verify_state(folder, state)
    return (folder / OPTIMIZER / MOMENTS).read_text(), state.digest
