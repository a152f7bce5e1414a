"""Writes a network's weights to a folder, whole or not at all, in the format of other tools."""

import json
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from gyre.model.checkpoint_store import (
    FORMAT,
    CheckpointManifest,
    Shard,
    TensorLocation,
    describe_file,
    write_manifest,
)
from gyre.model.hf_config import CONFIG
from gyre.model.network import Network
from gyre.model.weights import INDEX, SINGLE, digest_of, parameters
from gyre.storage.files import sync
from gyre.types.errors import ModelError

SHARD_BYTES = 2**30
Named = Iterable[tuple[str, Tensor]]
"""Tensors in main memory, in the order of their names."""

COMPANIONS = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "generation_config.json",
)
"""Files of the folder a network was loaded from that belong to every later version of it."""


def save(
    network: Network,
    folder: Path,
    *,
    version: int,
    dtype: torch.dtype | None = None,
    shard_bytes: int = SHARD_BYTES,
) -> CheckpointManifest:
    """`folder` holds the network, durably; raises ModelError, and then it is not there.

    With a type, weights are written in it. A folder that exists is never changed: versions of the
    weights are different folders.
    """
    kind = network.dtype if dtype is None else dtype
    return save_tensors(
        network,
        lambda: parameters(network, kind),
        folder,
        version=version,
        dtype=kind,
        shard_bytes=shard_bytes,
    )


def save_tensors(
    network: Network,
    named: Callable[[], Named],
    folder: Path,
    *,
    version: int,
    dtype: torch.dtype,
    shard_bytes: int = SHARD_BYTES,
) -> CheckpointManifest:
    """As `save`, of weights that are not in the network, which says only what model they are of.

    They are of this type, and asked for twice.
    """
    if folder.exists():
        message = f"{folder}: expected no such folder: a checkpoint is written once"
        raise ModelError(message)
    with appearing(folder) as part:
        shards: list[Shard] = []
        tensors: list[TensorLocation] = []
        for held in portions(named(), shard_bytes):
            path = part / f"model-{len(shards) + 1:05d}.safetensors"
            save_file(held, path, metadata={"format": "pt"})
            shards.append(describe_file(path))
            tensors += [
                TensorLocation(name=name, shape=tuple(one.shape), file=path.name)
                for name, one in held.items()
            ]
        shards, tensors = _named(part, shards, tensors)
        _write_config(network, part, dtype, shards, tensors)
        _copy_companions(network, part)
        files = {shard.file for shard in shards}
        others = sorted(path for path in part.iterdir() if path.name not in files)
        manifest = CheckpointManifest(
            format=FORMAT,
            version=version,
            dtype=_name(dtype),
            digest=digest_of(named()),
            shards=tuple(shards),
            tensors=tuple(tensors),
            others=tuple(describe_file(path) for path in others),
        )
        write_manifest(part, manifest)
    return manifest


@contextmanager
def appearing(folder: Path) -> Iterator[Path]:
    """A folder to fill; it takes its name when it is whole and on the disk, or is gone again."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.") as aside:
            part = Path(aside) / folder.name
            part.mkdir()
            yield part
            for path in [*part.iterdir(), part]:
                sync(path)
            part.rename(folder)
        sync(folder.parent)
    except (OSError, SafetensorError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        message = f"{folder}: cannot be written: {reason}"
        raise ModelError(message) from error


def portions(named: Named, shard_bytes: int = SHARD_BYTES) -> Iterator[dict[str, Tensor]]:
    """Tensors in pieces, so that no more than one is in main memory twice."""
    held: dict[str, Tensor] = {}
    num_bytes = 0
    for name, one in named:
        if held and num_bytes + one.nbytes > shard_bytes:
            yield held
            held, num_bytes = {}, 0
        held[name] = one
        num_bytes += one.nbytes
    yield held


def _named(
    part: Path, shards: list[Shard], tensors: list[TensorLocation]
) -> tuple[list[Shard], list[TensorLocation]]:
    """Files under the names that other tools look for, which tell how many there are."""
    many = len(shards)
    names = {
        one.file: SINGLE if many == 1 else f"model-{at:05d}-of-{many:05d}.safetensors"
        for at, one in enumerate(shards, start=1)
    }
    for before, after in names.items():
        (part / before).rename(part / after)
    return (
        [
            Shard(file=names[shard.file], num_bytes=shard.num_bytes, xxh3=shard.xxh3)
            for shard in shards
        ],
        [
            TensorLocation(name=tensor.name, shape=tensor.shape, file=names[tensor.file])
            for tensor in tensors
        ],
    )


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _write_config(
    network: Network,
    part: Path,
    dtype: torch.dtype,
    shards: Sequence[Shard],
    tensors: Sequence[TensorLocation],
) -> None:
    config = json.loads(network.module.config.to_json_string())
    config["dtype"] = _name(dtype)
    (part / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    if len(shards) > 1:
        total = sum(shard.num_bytes for shard in shards)
        places = {tensor.name: tensor.file for tensor in tensors}
        index = {"metadata": {"total_size": total}, "weight_map": places}
        (part / INDEX).write_text(json.dumps(index, indent=1) + "\n", encoding="utf-8")


def _copy_companions(network: Network, part: Path) -> None:
    origin = network.module.name_or_path
    if not origin:
        return
    for name in COMPANIONS:
        path = Path(origin) / name
        if path.is_file():
            shutil.copyfile(path, part / name)
