"""Claims as safetensors bytes, on their way from the controller to a cell, checked on arrival."""

import json
import struct
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from gyre.types.errors import RequestError
from gyre.types.training import Claim, Pack, Share

FORMAT = 1
_FIELDS = {
    "ids": np.int32,
    "positions": np.int32,
    "tout": np.int32,
    "predictors": np.int32,
    "labels": np.int32,
    "behaviour": np.float32,
    "shares": np.int32,
}
_LENGTH = struct.Struct("<Q")
_NOT_A_HEADER = (LookupError, TypeError, ValueError, RecursionError)


class _About(msgspec.Struct, forbid_unknown_fields=True):
    """What a claim says beside its arrays."""

    format: int
    num_packs: int
    oversize: bool
    shares: list[Share]


def packed(claim: Claim) -> bytes:
    """All packs of a claim, and its shares in the metadata."""
    about = _About(
        format=FORMAT,
        num_packs=len(claim.packs),
        oversize=claim.oversize,
        shares=list(claim.shares),
    )
    arrays = {
        f"{number}.{name}": np.ascontiguousarray(getattr(pack, name))
        for number, pack in enumerate(claim.packs)
        for name in _FIELDS
    }
    return save(arrays, metadata={"claim": msgspec.json.encode(about).decode()})


def unpacked(data: bytes) -> Claim:
    """What `packed` made; raises RequestError for anything else."""
    try:
        about = msgspec.json.decode(_metadata(data)["claim"], type=_About)
        found = load(data)
    except (SafetensorError, msgspec.MsgspecError, *_NOT_A_HEADER) as error:
        raise RequestError(f"expected the bytes of a claim: {error}") from error
    if about.format != FORMAT:
        raise RequestError(f"a claim of format {about.format}: this is format {FORMAT}")
    if not 0 <= about.num_packs <= len(found):
        raise RequestError(f"a claim of {about.num_packs} packs in {len(found)} arrays")
    wanted = {f"{number}.{name}" for number in range(about.num_packs) for name in _FIELDS}
    if wanted != set(found):
        other = sorted(wanted ^ set(found))[0]
        raise RequestError(f"a claim of {about.num_packs} packs: array {other!r} lacks or is spare")
    packs = tuple(_pack(number, found) for number in range(about.num_packs))
    return Claim(shares=tuple(about.shares), packs=packs, oversize=about.oversize)


def _pack(number: int, found: Mapping[str, NDArray[Any]]) -> Pack:
    arrays: dict[str, NDArray[Any]] = {}
    for name, dtype in _FIELDS.items():
        array = found[f"{number}.{name}"]
        if array.dtype != dtype or array.ndim != 1:
            said = f"{array.dtype} of {array.ndim} dimensions"
            raise RequestError(f"expected {np.dtype(dtype)} of one, found {said}", where=name)
        arrays[name] = array
    for first, *others in (("ids", "positions", "tout"), ("labels", "predictors", "behaviour")):
        for other in others:
            if len(arrays[first]) != len(arrays[other]):
                lengths = f"{len(arrays[other])} beside {len(arrays[first])} {first}"
                raise RequestError(f"expected as many, found {lengths}", where=other)
    return Pack(**arrays)


def _metadata(data: bytes) -> dict[str, str]:
    (length,) = _LENGTH.unpack_from(data) if len(data) >= _LENGTH.size else (0,)
    header = json.loads(data[_LENGTH.size : _LENGTH.size + length])
    return header["__metadata__"]  # type: ignore[no-any-return]
