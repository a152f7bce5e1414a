"""Cached blocks as safetensors, in bytes or in a file, and back, checked before any is used."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load, load_file, save, save_file
from torch import Tensor

from gyre.engine.reports import KVBlocks
from gyre.words.errors import NotFound, OutOfMemory, RequestError

HEADER_BYTES = 2**16
"""More than the names, types and shapes of three tensors take."""
_NAMES = {"token_ids", "values", "version"}
_FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,127}")


class Shelf(Protocol):
    """Where engines lay cached blocks for each other; methods block."""

    def put(self, blocks: KVBlocks, name: str) -> tuple[str, int]:
        """What they are asked for by, which may not be the name that was wished for; bytes."""
        ...

    def take(self, name: str) -> KVBlocks: ...

    def drop(self, name: str) -> None:
        """Nobody needs what was put there under that name any more, if it is there at all."""
        ...


class Folder:
    """A folder that engines of one machine share: blocks are taken without a copy between."""

    def __init__(self, share: Path) -> None:
        self._share = share

    def put(self, blocks: KVBlocks, name: str) -> tuple[str, int]:
        return name, put(blocks, self._path("to", name))

    def take(self, name: str) -> KVBlocks:
        return take(self._path("from", name))

    def drop(self, name: str) -> None:
        self._path("from", name).unlink(missing_ok=True)

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
    return save(_tensors(blocks))


def unpacked(data: bytes) -> KVBlocks:
    """What `packed` made; raises RequestError for anything else."""
    try:
        found = load(data)
    except (SafetensorError, KeyError, RuntimeError, ValueError) as error:
        message = f"expected the bytes of an export: {error}"
        raise RequestError(message) from error
    return _checked(found)


def put(blocks: KVBlocks, path: Path) -> int:
    """The same as a file, there whole or not at all; its bytes."""
    part = path.with_name(f"{path.name}.part")
    try:
        save_file(_tensors(blocks), part)
        part.rename(path)
    except (OSError, SafetensorError) as error:
        part.unlink(missing_ok=True)
        raise OutOfMemory(f"{path}: no room for cached blocks: {error}") from error
    return path.stat().st_size


def take(path: Path) -> KVBlocks:
    """What `put` made, read where it lies; the file is gone, the blocks are not."""
    try:
        found = load_file(path)
        path.unlink()
    except FileNotFoundError as error:
        raise NotFound(f"no cached blocks named {path.name}", where="from") from error
    except (OSError, SafetensorError) as error:
        raise RequestError(f"expected cached blocks: {error}", where="from") from error
    return _checked(found)


def _tensors(blocks: KVBlocks) -> dict[str, Tensor]:
    ids = torch.from_numpy(np.frombuffer(blocks.token_ids, np.int32).copy())
    version = torch.tensor([blocks.version], dtype=torch.int64)
    values = blocks.values.to("cpu").contiguous()
    return {"token_ids": ids, "version": version, "values": values}


def _checked(found: Mapping[str, Tensor]) -> KVBlocks:
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
    if not values.is_floating_point() or not bool(torch.isfinite(values).all()):
        message = f"expected finite numbers, found {_described(values)}"
        raise RequestError(message, where="values")
    return KVBlocks(
        token_ids=ids.numpy().tobytes(), version=int(version.reshape(()).item()), values=values
    )


def _described(one: Tensor) -> str:
    return f"{one.dtype} of shape {tuple(one.shape)}"
