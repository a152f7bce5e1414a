"""Opens an engine core: chooses device and type, loads the weights, allocates the cache."""

from dataclasses import dataclass

import torch

from gyre.config.sections import EngineConfig
from gyre.inference.engine.engine import EngineCore
from gyre.inference.engine.kv_cache import carried_bytes
from gyre.inference.engine.request import Decode
from gyre.model.checkpoint_store import read_manifest
from gyre.model.loader import load_network
from gyre.model.registry import model_folder
from gyre.types.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedEngine:
    """An engine core with its model loaded, its device, and the bytes of its cache."""

    loop: EngineCore
    device: torch.device
    kv_bytes: int
    """Of all the tokens it can hold, on their way to another."""


def open_loop(
    model: str,
    section: EngineConfig,
    *,
    device: str | None,
    dtype: str | None,
    seed: int,
    decode: Decode | None,
) -> OpenedEngine:
    """The model's loop; raises ConfigError, ModelError or OutOfMemory.

    Without a device it is on CUDA where there is one; without a type it has bfloat16 there and
    float32 elsewhere. The version is what the model's folder says, or 0.
    """
    place = device_of(device)
    network = load_network(model, device=place, dtype=dtype_of(dtype, place))
    manifest = read_manifest(model_folder(model))
    loop = EngineCore(
        network,
        section,
        model=model,
        version=0 if manifest is None else manifest.version,
        seed=seed,
        decode=decode,
    )
    capacity = loop.capacity()
    num_tokens = capacity.blocks * capacity.block_tokens
    kv_bytes = carried_bytes(network.shape, num_tokens)
    return OpenedEngine(loop=loop, device=place, kv_bytes=kv_bytes)


def device_of(asked: str | None) -> torch.device:
    if asked is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        place = torch.device(asked)
    except RuntimeError as error:
        raise ConfigError(f"device: expected cpu, cuda or cuda:N, found {asked!r}") from error
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if place.type not in ("cpu", "cuda") or (place.type == "cuda" and (place.index or 0) >= count):
        raise ConfigError(f"device: expected cpu or one of {count} CUDA devices, found {asked!r}")
    return place


def dtype_of(asked: str | None, place: torch.device) -> torch.dtype:
    known = {str(dtype).removeprefix("torch."): dtype for dtype in (torch.float32, torch.bfloat16)}
    if asked is None:
        return torch.bfloat16 if place.type == "cuda" else torch.float32
    if asked not in known:
        raise ConfigError(f"dtype: expected {' or '.join(known)}, found {asked!r}")
    return known[asked]
