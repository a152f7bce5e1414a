"""Cached blocks that engines of one machine hand each other on their devices."""

from collections.abc import Callable
from threading import Lock

import msgspec
import torch
from torch import Tensor

from gyre.inference.carried import HEADER_BYTES, TYPES, checked, tensors_of
from gyre.inference.engine.reports import KVBlocks
from gyre.model.lending import IpcExport, IpcMemory, read
from gyre.types.errors import ExposureGone, NotFound, OutOfMemory, RequestError, TransferError
from gyre.types.transfers import IpcHandle


class _Told(msgspec.Struct, forbid_unknown_fields=True):
    """What blocks are asked for by: where they lie, and their tensors' types and shapes by name."""

    lent: IpcHandle
    tensors: dict[str, tuple[str, list[int]]]


_TOLD = msgspec.json.Decoder(_Told)
_BY_NAME = {name: one for one, name in TYPES.items()}


class CudaIpcKvStore:
    """A shelf in device memory: blocks stay with who put them, and are copied by who takes them."""

    def __init__(
        self,
        memory: IpcMemory,
        device: torch.device,
        *,
        kv_bytes: int,
        free_bytes: Callable[[], int],
    ) -> None:
        """More blocks than fit into the first no engine takes; the second is asked for each time
        that some are laid, because others have come to the device and left it since."""
        self._memory = memory
        self._device = device
        self._most_bytes = kv_bytes + HEADER_BYTES
        self._free_bytes = free_bytes
        self._lock = Lock()
        self._laid: dict[str, IpcExport] = {}

    def put(self, blocks: KVBlocks, name: str) -> tuple[str, int]:
        """OutOfMemory where more would lie here than is free beside it, which is for passes."""
        found = tensors_of(blocks)
        num_bytes = sum(one.nbytes for one in found.values())
        about = {name: (TYPES[one.dtype], [*one.shape]) for name, one in found.items()}
        with self._lock:
            lying = sum(one.lent.num_bytes for one in self._laid.values())
            free = self._free_bytes()
            if lying + num_bytes > free:
                message = f"{num_bytes} bytes of cached blocks: {lying} lie here already, and no "
                raise OutOfMemory(f"{message}more than the {free} that are free may")
            try:
                loan = self._memory.lend([one.to(self._device) for one in found.values()])
            except RuntimeError as error:
                raise OutOfMemory(f"no room for cached blocks: {error}") from error
            told = msgspec.json.encode(_Told(lent=loan.lent, tensors=about)).decode()
            self._laid[told] = loan
        return told, num_bytes

    def take(self, name: str) -> KVBlocks:
        try:
            told = _TOLD.decode(name)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise RequestError(f"expected what an engine put: {error}", where="from") from error
        if told.lent.num_bytes > self._most_bytes:
            found = f"expected up to {self._most_bytes} bytes, found {told.lent.num_bytes}"
            raise RequestError(found, where="from")
        made = self._room(told)
        try:
            read(self._memory, told.lent, list(made.values()))
        except ExposureGone as error:
            raise NotFound(f"no cached blocks: {error}", where="from") from error
        except TransferError as error:
            raise RequestError(f"expected cached blocks: {error}", where="from") from error
        return checked({name: one if name == "values" else one.cpu() for name, one in made.items()})

    def drop(self, name: str) -> None:
        with self._lock:
            loan = self._laid.pop(name, None)
        if loan is not None:
            loan.end()

    def clear(self) -> None:
        with self._lock:
            loans, self._laid = self._laid, {}
        for loan in loans.values():
            loan.end()

    def _room(self, told: _Told) -> dict[str, Tensor]:
        if len(told.tensors) != len(told.lent.parts):
            found = f"{len(told.tensors)} tensors in {len(told.lent.parts)} parts"
            raise RequestError(f"expected a part for each tensor, found {found}", where="from")
        made = {}
        for (name, (dtype, shape)), place in zip(
            told.tensors.items(), told.lent.parts, strict=True
        ):
            if dtype not in _BY_NAME:
                found = f"{name}: expected a type of {[*_BY_NAME]}, found {dtype}"
                raise RequestError(found, where="from")
            kind = _BY_NAME[dtype]
            if any(size < 0 for size in shape) or _bytes(shape, kind) != place.num_bytes:
                found = f"{name}: expected {place.num_bytes} bytes, found shape {shape} of {dtype}"
                raise RequestError(found, where="from")
            try:
                made[name] = torch.empty(shape, dtype=kind, device=self._device)
            except RuntimeError as error:
                raise OutOfMemory(f"cached blocks of shape {shape}: no room: {error}") from error
        return made


def _bytes(shape: list[int], dtype: torch.dtype) -> int:
    return torch.Size(shape).numel() * dtype.itemsize
