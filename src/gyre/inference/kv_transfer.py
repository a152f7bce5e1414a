"""KV blocks between engines: shared file, CUDA IPC or transport."""

import json
import os
import re
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock, local
from typing import Protocol

import msgspec
import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load, save
from torch import Tensor

from gyre.inference.engine.request import KVBlocks
from gyre.model.cuda_ipc import IpcExport, IpcMemory, read
from gyre.transports.tensor_layout import TensorSlice
from gyre.transports.tensor_transfer import TensorBytes, expose, fetch, read_sheet_of
from gyre.types.errors import ExposureGone, NotFound, OutOfMemory, RequestError, TransferError
from gyre.types.protocols import IpcHandle, TensorBundle, Transport

LANES = 8
"""Threads: pages of a file in memory are made and copied by one at a fraction of memory's speed."""
PART_BYTES = 2**24
Move = Callable[[int, int], None]
"""Of the part of a tensor that begins at the first, and has as many bytes as the second."""


class StagedCopier:
    """Threads that copy between a device and files, each by pinned memory of its own."""

    def __init__(self, *, lanes: int = LANES, part_bytes: int = PART_BYTES) -> None:
        self._threads = ThreadPoolExecutor(lanes, thread_name_prefix="kv-copy")
        self._part_bytes = part_bytes
        self._mine = local()

    def write(self, values: Tensor, file: int, at: int) -> None:
        """The file has the values' bytes from there on."""
        flat = _bytes_of(values)
        ready = _begun(flat)

        def move(start: int, count: int) -> None:
            part = flat[start : start + count]
            if ready is not None:
                host, stream = self._lane(flat.device)
                stream.wait_event(ready)
                with torch.cuda.stream(stream):
                    host[:count].copy_(part, non_blocking=True)
                stream.synchronize()
                part = host[:count]
            _write(file, at + start, part.numpy().data)

        self._all(flat.numel(), move)

    def read(self, file: int, at: int, into: Tensor) -> None:
        """The tensor, which is contiguous, has the file's bytes from there on."""
        flat = _bytes_of(into)
        ready = _begun(flat)

        def move(start: int, count: int) -> None:
            part = flat[start : start + count]
            if ready is None:
                _read(file, at + start, part.numpy().data)
                return
            host, stream = self._lane(flat.device)
            _read(file, at + start, host[:count].numpy().data)
            stream.wait_event(ready)
            with torch.cuda.stream(stream):
                part.copy_(host[:count], non_blocking=True)
            stream.synchronize()

        self._all(flat.numel(), move)

    def close(self) -> None:
        """Its threads have ended."""
        self._threads.shutdown()

    def _all(self, num_bytes: int, move: Move) -> None:
        """Every part is moved, or the first error that one met is raised."""
        size = self._part_bytes
        moves = [
            self._threads.submit(move, start, min(size, num_bytes - start))
            for start in range(0, num_bytes, size)
        ]
        for copy in moves:
            # All are waited for, because an error must leave no thread at work on the tensor.
            copy.exception()
        for copy in moves:
            copy.result()

    def _lane(self, device: torch.device) -> tuple[Tensor, torch.cuda.Stream]:
        """This thread's memory and stream; kept, because pinning takes longer than copying."""
        if not hasattr(self._mine, "host"):
            self._mine.host = torch.empty(self._part_bytes, dtype=torch.uint8, pin_memory=True)
            self._mine.stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        return self._mine.host, self._mine.stream


def _bytes_of(values: Tensor) -> Tensor:
    return values.detach().view(-1).view(torch.uint8)


def _begun(values: Tensor) -> torch.cuda.Event | None:
    """What was asked of the values' device before, which every lane lets happen first."""
    if not values.is_cuda:
        return None
    event = torch.cuda.Event()  # type: ignore[no-untyped-call]
    event.record(torch.cuda.current_stream(values.device))
    return event


def _write(file: int, at: int, data: memoryview) -> None:
    done = 0
    while done < len(data):
        done += os.pwrite(file, data[done:], at + done)


def _read(file: int, at: int, into: memoryview) -> None:
    done = 0
    while done < len(into):
        count = os.preadv(file, [into[done:]], at + done)
        if count == 0:
            raise OSError("its end came too soon")
        done += count


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
    """Where an engine puts cached blocks so that another engine can take them; methods block."""

    def put(self, blocks: KVBlocks, name: str) -> tuple[str, int]:
        """What they are asked for by, which may not be the name that was wished for; bytes."""
        ...

    def take(self, name: str) -> KVBlocks: ...

    def drop(self, name: str) -> None:
        """Removes what was put there under that name, if it is there."""
        ...

    def clear(self) -> None:
        """Removes everything that this process has put there."""
        ...

    def close(self) -> None:
        """Cleared, and used no more: no thread of it is left."""
        ...


class SharedFolderKvStore:
    """A folder in memory that engines of one machine share; blocks are taken to a device."""

    def __init__(self, share: Path, device: torch.device | None = None) -> None:
        self._share = share
        self._device = torch.device("cpu") if device is None else device
        self._copier = StagedCopier()
        self._laid: set[str] = set()

    def put(self, blocks: KVBlocks, name: str) -> tuple[str, int]:
        num_bytes = put(blocks, self._path("to", name), self._copier)
        self._laid.add(name)
        return name, num_bytes

    def take(self, name: str) -> KVBlocks:
        return take(self._path("from", name), self._copier, self._device)

    def drop(self, name: str) -> None:
        self._path("from", name).unlink(missing_ok=True)
        self._laid.discard(name)

    def clear(self) -> None:
        for name in list(self._laid):
            self.drop(name)

    def close(self) -> None:
        self.clear()
        self._copier.close()

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
        raise RequestError(f"expected the bytes of an export: {error}") from error
    return checked(found)


def put(blocks: KVBlocks, path: Path, copier: StagedCopier) -> int:
    """The same as a file, there whole or not at all; its bytes."""
    part = path.with_name(f"{path.name}.part")
    tensors = tensors_of(blocks)
    header = _header(tensors)
    try:
        with part.open("wb", buffering=0) as file:
            file.write(header)
            at = len(header)
            for tensor in tensors.values():
                copier.write(tensor, file.fileno(), at)
                at += tensor.nbytes
        part.rename(path)
    except (OSError, RuntimeError, MemoryError) as error:  # Also where none can be pinned.
        part.unlink(missing_ok=True)
        raise OutOfMemory(f"{path}: no room for cached blocks: {error}") from error
    return at


def take(path: Path, copier: StagedCopier, device: torch.device) -> KVBlocks:
    """What `put` made, its values on the device; the file is gone, the blocks are not."""
    try:
        with path.open("rb", buffering=0) as file:
            found = {
                name: _read_blocks(
                    file.fileno(), *place, copier, device if name == "values" else None
                )
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


def _read_blocks(
    file: int,
    dtype: torch.dtype,
    shape: list[int],
    at: int,
    copier: StagedCopier,
    device: torch.device | None,
) -> Tensor:
    try:
        made = torch.empty(shape, dtype=dtype, device=device or torch.device("cpu"))
    except (RuntimeError, MemoryError) as error:
        raise OutOfMemory(f"cached blocks of shape {tuple(shape)}: no room: {error}") from error
    copier.read(file, at, made)
    return made


def tensors_of(blocks: KVBlocks) -> dict[str, Tensor]:
    """What an export consists of, by name."""
    ids = torch.from_numpy(np.frombuffer(blocks.token_ids, np.int32).copy())
    version = torch.tensor([blocks.version], dtype=torch.int64)
    return {"values": blocks.values.contiguous(), "version": version, "token_ids": ids}


def checked(found: Mapping[str, Tensor]) -> KVBlocks:
    """The export of these tensors; RequestError for what is none."""
    if set(found) != _NAMES:
        raise RequestError(f"expected the tensors {sorted(_NAMES)}, found {sorted(found)}")
    ids, version, values = found["token_ids"], found["version"], found["values"]
    if ids.dtype != torch.int32 or ids.dim() != 1:
        message = f"expected int32 of one dimension, found {_described(ids)}"
        raise RequestError(message, where="token_ids")
    if version.dtype != torch.int64 or version.numel() != 1:
        raise RequestError(f"expected one int64, found {_described(version)}", where="version")
    if not values.is_floating_point() or not _is_finite(values):
        raise RequestError(f"expected finite numbers, found {_described(values)}", where="values")
    return KVBlocks(
        token_ids=ids.numpy().tobytes(), version=int(version.reshape(()).item()), values=values
    )


def _is_finite(values: Tensor) -> bool:
    """By the least and the greatest, which make no mask of the values' size."""
    return not values.numel() or bool(torch.isfinite(torch.stack(values.aminmax())).all())


def _described(one: Tensor) -> str:
    return f"{one.dtype} of shape {tuple(one.shape)}"


BLOCKS = "blocks"
"""The one tensor of a bundle: all that an export consists of, as bytes."""
BYTES = "uint8"
SHEET_BYTES = 2**16
SHEET_PART = 2**16
"""The sheet of one tensor takes no more than this and, for its hashes, this part of its bytes."""
_BUNDLE = msgspec.json.Decoder(TensorBundle)


class TransportKvStore:
    """Blocks stay with the engine that put them; other engines read them by the transport."""

    def __init__(self, transport: Transport, *, kv_bytes: int) -> None:
        """More blocks than fit into these bytes no engine takes."""
        self._transport = transport
        self._most_bytes = kv_bytes + HEADER_BYTES + SHEET_BYTES + kv_bytes // SHEET_PART
        self._lock = Lock()
        self._laid: dict[str, TensorBundle] = {}

    def put(self, blocks: KVBlocks, name: str) -> tuple[str, int]:
        data = np.frombuffer(packed(blocks), np.uint8)
        part = TensorBytes(dtype=BYTES, cut=TensorSlice.all_of(data.shape), data=data)
        bundle = expose(self._transport, {BLOCKS: part}, version=blocks.version)
        found = msgspec.json.encode(bundle).decode()
        with self._lock:
            self._laid[found] = bundle
        return found, data.nbytes

    def take(self, name: str) -> KVBlocks:
        try:
            bundle = _BUNDLE.decode(name)
            if not 0 < bundle.num_bytes <= self._most_bytes:
                message = f"expected up to {self._most_bytes} bytes, found {bundle.num_bytes}"
                raise RequestError(message, where="from")
            return unpacked(self._read(bundle))
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise RequestError(f"expected what an engine put: {error}", where="from") from error
        except ExposureGone as error:
            raise NotFound(f"no cached blocks: {error}", where="from") from error
        except TransferError as error:
            raise RequestError(f"expected cached blocks: {error}", where="from") from error

    def drop(self, name: str) -> None:
        with self._lock:
            bundle = self._laid.pop(name, None)
        if bundle is not None:
            self._transport.withdraw(bundle.exposure)

    def clear(self) -> None:
        with self._lock:
            names = list(self._laid)
        for name in names:
            self.drop(name)

    def close(self) -> None:
        self.clear()

    def _read(self, bundle: TensorBundle) -> bytes:
        laid = read_sheet_of(self._transport, bundle).tensors.get(BLOCKS)
        if laid is None or laid.dtype != BYTES:
            raise TransferError("a bundle without blocks", retryable=False)
        whole = TensorSlice.all_of(laid.cut.whole)
        return fetch(self._transport, [bundle], {BLOCKS: (BLOCKS, whole)})[BLOCKS].data.tobytes()


class _Told(msgspec.Struct, forbid_unknown_fields=True):
    """What blocks are asked for by: where they lie, and their tensors' types and shapes by name."""

    lent: IpcHandle
    tensors: dict[str, tuple[str, list[int]]]


_TOLD = msgspec.json.Decoder(_Told)
_BY_NAME = {name: one for one, name in TYPES.items()}


class CudaIpcKvStore:
    """A store in device memory: blocks stay with the engine that put them, and a taker copies."""

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
            except (RuntimeError, MemoryError) as error:
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

    def close(self) -> None:
        self.clear()

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
            except (RuntimeError, MemoryError) as error:
                raise OutOfMemory(f"cached blocks of shape {shape}: no room: {error}") from error
        return made


def _bytes(shape: list[int], dtype: torch.dtype) -> int:
    return torch.Size(shape).numel() * dtype.itemsize
