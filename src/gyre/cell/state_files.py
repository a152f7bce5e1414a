"""An optimizer's state as files of one rank, and back: safetensors and a manifest, nothing else."""

from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from gyre.model.checkpoint import portions
from gyre.model.manifest import Shard, describe_file, verify_files
from gyre.model.state_manifest import OPTIMIZER, StateManifest, require_state_manifest
from gyre.storage.durable import sync
from gyre.trainer.optimizer import OptimizerState
from gyre.types.errors import ModelError


def write_state(folder: Path, rank: int, state: OptimizerState) -> tuple[Shard, ...]:
    """The rank's files are there and on the disk; ModelError where they cannot be."""
    files = []
    try:
        for number, held in enumerate(portions(sorted(state.tensors.items()))):
            path = folder / f"rank-{rank:05d}-{number:05d}.safetensors"
            save_file(held, path)
            sync(path)
            files.append(describe_file(path))
    except (OSError, SafetensorError) as error:
        message = f"{folder}: the state of rank {rank} cannot be written: {error}"
        raise ModelError(message) from error
    return tuple(files)


def read_state(checkpoint: Path, rank: int, *, stages: int, shards: int) -> OptimizerState:
    """What this rank of a cell of this layout has written; ModelError for anything else."""
    manifest = require_state_manifest(checkpoint)
    _check_layout(checkpoint, manifest, stages=stages, shards=shards)
    files = manifest.ranks[rank]
    verify_files(checkpoint / OPTIMIZER, files)
    tensors: dict[str, Tensor] = {}
    for shard in files:
        path = checkpoint / OPTIMIZER / Path(shard.file).name
        try:
            with safe_open(path, framework="pt") as file:
                tensors |= {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except (OSError, SafetensorError) as error:
            message = f"{path}: expected a whole safetensors file: {error}"
            raise ModelError(message) from error
    return OptimizerState(num_steps=manifest.num_steps, tensors=tensors)


def _check_layout(checkpoint: Path, manifest: StateManifest, *, stages: int, shards: int) -> None:
    found = (manifest.stages, manifest.shards, len(manifest.ranks))
    if found != (stages, shards, stages * shards):
        message = (
            f"{checkpoint / OPTIMIZER}: expected the state of {stages} stages of {shards} shards, "
            f"found that of {manifest.stages} of {manifest.shards}"
        )
        raise ModelError(message)
