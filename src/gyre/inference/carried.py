"""Cached blocks as safetensors, in bytes or in a file, and back, checked before any is used."""

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load, save
from torch import Tensor

from gyre.inference.engine.reports import KVBlocks
from gyre.inference.ferry import StagedCopier
from gyre.types.errors import NotFound, OutOfMemory, RequestError

HEADER_BYTES = 2**16
"""More than the names, types and shapes of three tensors take."""
_NAMES = {"token_ids", "values", "version"}
TYPES = {
    torch.int32: "I32",
    torch.int64: "I64",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float32: "F32",
    torch.float64: "F64",
}
"""As safetensors spells them."""
_FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,127}")


class KvStore(Protocol):
    """Where engines lay cached blocks for each other; methods block."""

    def put(self, blocks: KVBlocks, name: str) -> tuple[str, int]:
        """What they are asked for by, which may not be the name that was wished for; bytes."""
        ...

    def take(self, name: str) -> KVBlocks: ...

    def drop(self, name: str) -> None:
        """Nobody needs what was put there under that name any more, if it is there at all."""
        ...

    def clear(self) -> None:
        """Nobody needs anything that this process has put there."""
        ...


class SharedFolderKvStore:
    """A folder in memory that engines of one machine share; blocks are taken to a device."""

    def __init__(self, share: Path, device: torch.device | None = None) -> None:
        self._share = share
        self._device = torch.device("cpu") if device is None else device
        self._ferry = StagedCopier()
        self._laid: set[str] = set()

    def put(self, blocks: KVBlocks, name: str) -> tuple[str, int]:
        num_bytes = put(blocks, self._path("to", name), self._ferry)
        self._laid.add(name)
        return name, num_bytes

    def take(self, name: str) -> KVBlocks:
        return take(self._path("from", name), self._ferry, self._device)

    def drop(self, name: str) -> None:
        self._path("from", name).unlink(missing_ok=True)
        self._laid.discard(name)

    def clear(self) -> None:
        for name in list(self._laid):
            self.drop(name)

    def _path(self, where: str, name: str) -> Path:
        check_name(where, name)
        return self._share / f"{name}.kv"


def check_name(where: str, name: str) -> None:
    """It can be the name of a file, and of none in another folder."""
    if not _FILE_NAME.fullmatch(name):
        message = f"expected a name of letters, digits, - and _, found {name[:80]!r}"
        raise RequestError(message, where=where)


def packed(blocks: KVBlocks) -> bytes:
    """Three tensors: the ids, the version of the weights, and the keys and values."""
    return save({name: one.to("cpu") for name, one in tensors_of(blocks).items()})


def unpacked(data: bytes) -> KVBlocks:
    """What `packed` made; raises RequestError for anything else."""
    try:
        found = load(data)
    except (SafetensorError, KeyError, RuntimeError, ValueError) as error:
        message = f"expected the bytes of an export: {error}"
        raise RequestError(message) from error
    return checked(found)


def put(blocks: KVBlocks, path: Path, ferry: StagedCopier) -> int:
    """The same as a file, there whole or not at all; its bytes."""
    part = path.with_name(f"{path.name}.part")
    tensors = tensors_of(blocks)
    header = _header(tensors)
    try:
        with part.open("wb", buffering=0) as file:
            file.write(header)
            at = len(header)
            for one in tensors.values():
                ferry.write(one, file.fileno(), at)
                at += one.nbytes
        part.rename(path)
    except (OSError, RuntimeError) as error:  # The second where no memory can be pinned.
        part.unlink(missing_ok=True)
        raise OutOfMemory(f"{path}: no room for cached blocks: {error}") from error
    return at


def take(path: Path, ferry: StagedCopier, device: torch.device) -> KVBlocks:
    """What `put` made, its values on the device; the file is gone, the blocks are not."""
    try:
        with path.open("rb", buffering=0) as file:
            found = {
                name: _read(file.fileno(), *place, ferry, device if name == "values" else None)
                for name, place in _places(path, file.fileno()).items()
            }
        path.unlink()
    except FileNotFoundError as error:
        raise NotFound(f"no cached blocks named {path.name}", where="from") from error
    except (OSError, SafetensorError) as error:
        raise RequestError(f"expected cached blocks: {error}", where="from") from error
    return checked(found)


def _header(tensors: Mapping[str, Tensor]) -> bytes:
    """What a file of these tensors, one after the other, begins with."""
    about, at = {}, 0
    for name, one in tensors.items():
        end = at + one.nbytes
        about[name] = {"dtype": TYPES[one.dtype], "shape": [*one.shape], "data_offsets": [at, end]}
        at = end
    text = json.dumps(about).encode()
    # Filled up, so that values lie where their type wants them.
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _places(path: Path, file: int) -> dict[str, tuple[torch.dtype, list[int], int]]:
    """By name: type, shape and where the bytes begin, of a file that is found to be whole."""
    with safe_open(path, framework="pt"):
        pass  # Sizes, names and places fit together and lie within the file.
    size = int.from_bytes(os.pread(file, 8, 0), "little")
    about = json.loads(os.pread(file, size, 8))
    types = {name: one for one, name in TYPES.items()}
    found = {}
    for name in about.keys() - {"__metadata__"}:
        said = about[name]
        if said["dtype"] not in types:
            raise SafetensorError(f"{name}: expected a type of {[*types]}, found {said['dtype']}")
        found[name] = (types[said["dtype"]], said["shape"], 8 + size + said["data_offsets"][0])
    return found


def _read(
    file: int,
    dtype: torch.dtype,
    shape: list[int],
    at: int,
    ferry: StagedCopier,
    device: torch.device | None,
) -> Tensor:
    try:
        made = torch.empty(shape, dtype=dtype, device=device or torch.device("cpu"))
    except RuntimeError as error:
        raise OutOfMemory(f"cached blocks of shape {tuple(shape)}: no room: {error}") from error
    ferry.read(file, at, made)
    return made


def tensors_of(blocks: KVBlocks) -> dict[str, Tensor]:
    """What an export consists of, by name."""
    ids = torch.from_numpy(np.frombuffer(blocks.token_ids, np.int32).copy())
    version = torch.tensor([blocks.version], dtype=torch.int64)
    return {"values": blocks.values.contiguous(), "version": version, "token_ids": ids}


def checked(found: Mapping[str, Tensor]) -> KVBlocks:
    """The export of these tensors; RequestError for what is none."""
    if set(found) != _NAMES:
        message = f"expected the tensors {sorted(_NAMES)}, found {sorted(found)}"
        raise RequestError(message)
    ids, version, values = found["token_ids"], found["version"], found["values"]
    if ids.dtype != torch.int32 or ids.dim() != 1:
        message = f"expected int32 of one dimension, found {_described(ids)}"
        raise RequestError(message, where="token_ids")
    if version.dtype != torch.int64 or version.numel() != 1:
        message = f"expected one int64, found {_described(version)}"
        raise RequestError(message, where="version")
    if not values.is_floating_point() or not _is_finite(values):
        message = f"expected finite numbers, found {_described(values)}"
        raise RequestError(message, where="values")
    return KVBlocks(
        token_ids=ids.numpy().tobytes(), version=int(version.reshape(()).item()), values=values
    )


def _is_finite(values: Tensor) -> bool:
    """By the least and the greatest, which make no mask of the values' size."""
    return not values.numel() or bool(torch.isfinite(torch.stack(values.aminmax())).all())


def _described(one: Tensor) -> str:
    return f"{one.dtype} of shape {tuple(one.shape)}"
