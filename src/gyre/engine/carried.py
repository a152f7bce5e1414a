"""Cached blocks as safetensors bytes, and back, checked before any of them is used."""

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load, save

from gyre.engine.reports import KVBlocks
from gyre.words.errors import RequestError

HEADER_BYTES = 2**16
"""More than the names, types and shapes of three tensors take."""
_NAMES = {"token_ids", "values", "version"}


def packed(blocks: KVBlocks) -> bytes:
    """Three tensors: the ids, the version of the weights, and the keys and values."""
    ids = torch.from_numpy(np.frombuffer(blocks.token_ids, np.int32).copy())
    version = torch.tensor([blocks.version], dtype=torch.int64)
    values = blocks.values.to("cpu").contiguous()
    return save({"token_ids": ids, "version": version, "values": values})


def unpacked(data: bytes) -> KVBlocks:
    """What `packed` made; raises RequestError for anything else."""
    try:
        found = load(data)
    except (SafetensorError, KeyError, RuntimeError, ValueError) as error:
        message = f"expected the bytes of an export: {error}"
        raise RequestError(message) from error
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


def _described(one: torch.Tensor) -> str:
    return f"{one.dtype} of shape {tuple(one.shape)}"
