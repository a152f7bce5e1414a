"""Weights of one rank as a file in the shared folder, hashed, for the same rank of other cells."""

from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from gyre.model.manifest import Shard, describe_file
from gyre.types.errors import ModelError


def write_shard(path: Path, tensors: Mapping[str, Tensor]) -> Shard:
    """The file is there, whole, under its name."""
    held = {name: one.detach().to("cpu").contiguous() for name, one in tensors.items()}
    part = path.with_name(f"{path.name}.part")
    try:
        save_file(held, part)
        part.rename(path)
        return describe_file(path)
    except (OSError, SafetensorError) as error:
        raise ModelError(f"{path}: cannot be written: {error}") from error


def read_shard(share: Path, given: Shard) -> dict[str, Tensor]:
    """What was laid there; ModelError if it is not what was described."""
    path = share / Path(given.file).name
    try:
        found = describe_file(path)
        if (found.num_bytes, found.xxh3) != (given.num_bytes, given.xxh3):
            expected = f"{given.num_bytes} bytes with hash {given.xxh3}"
            raise ModelError(
                f"{path}: expected {expected}, found {found.num_bytes} with {found.xxh3}"
            )
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise ModelError(f"{path}: expected weights: {error}") from error
