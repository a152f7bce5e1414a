"""Device memory shared between processes by CUDA IPC.

A file for each loan, which its readers lock: the lender knows when the last reader is done.

Rule 1: a reader whose lock was granted while the file had its name is waited for, however the loan
ends; a process that is killed holds no lock.

Device memory that processes of one machine lend each other, by the handles of CUDA's driver.

Rule 1: a stamp is looked at before and after everything that is read, and the lender erases it
before the memory becomes anything else: what was read is what was lent, or ExposureGone.
Rule 2: memory goes back to the driver only when no reader has it open, which the driver leaves to
us: what is read after that would be anything.
"""

import ctypes
import fcntl
import os
import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import cache
from pathlib import Path
from threading import Lock
from typing import Any, Protocol

import torch
from torch import Tensor

from gyre.types.errors import ExposureGone, TransferError
from gyre.types.protocols import IpcHandle, MemoryRange


def current(device: torch.device) -> AbstractContextManager[object]:
    """A context in which kernels, streams, events and captures of this thread are the device's."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


LOOKS_S = 0.002
"""How often a lender looks whether its readers are through."""


class ReaderLocks:
    """The lock file of one export, by which its owner knows whether processes still read it."""

    def __init__(self, folder: Path, key: str) -> None:
        self._path = _path(folder, key)
        try:
            self._file: int | None = os.open(self._path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
        except OSError as error:
            raise TransferError(f"{folder}: no room for a loan: {error}") from error

    def refuse(self) -> None:
        """Readers that come from now on get ExposureGone; a second time does nothing."""
        self._path.unlink(missing_ok=True)

    def are_gone(self, within_s: float) -> bool:
        """Whether all readers end within that time; to be asked after `refuse` until it is true."""
        until_s = time.monotonic() + within_s
        while self._file is not None:
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= until_s:
                    return False
                time.sleep(LOOKS_S)
            else:
                os.close(self._file)
                self._file = None
        return True


@contextmanager
def reading(folder: Path, key: str) -> Iterator[None]:
    """A context in which the lender waits for this reader; ExposureGone once the loan has ended."""
    ended = f"memory lent under {key[:8]} is not lent any more"
    try:
        file = os.open(_path(folder, key), os.O_RDWR)
    except FileNotFoundError as error:
        raise ExposureGone(ended) from error
    except OSError as error:
        raise TransferError(f"{folder}: cannot read a loan: {error}") from error
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ExposureGone(ended) from error
        if not os.fstat(file).st_nlink:
            raise ExposureGone(ended)
        yield
    finally:
        os.close(file)


def _path(folder: Path, key: str) -> Path:
    if not (key.isascii() and key.isalnum()):
        raise TransferError(f"expected hex digits, found {key[:40]!r}", retryable=False)
    return folder / f"{key}.lent"


DRIVER = "libcuda.so.1"
HANDLE_BYTES = 64
KEY_BYTES = 16
PEERS = 1
"""Flag: memory of another device of the machine is reached where the hardware can."""
READERS_S = 10.0
"""How long the end of a loan waits for who is reading: longer than any read that goes on."""


class IpcExport(Protocol):
    """Tensors that other processes may read; their owner changes none before it has ended."""

    @property
    def lent(self) -> IpcHandle: ...

    def end(self) -> None:
        """Readers now and later get ExposureGone; a second time does nothing."""
        ...


class IpcMemory(Protocol):
    """Exports tensors to other processes and reads theirs; methods block, from any thread."""

    def lend(self, tensors: Sequence[Tensor], *, with_sums: bool = True) -> IpcExport:
        """Without sums for those who read tensors where they lie, and have no copy to compare."""
        ...

    def borrowed(self, lent: IpcHandle) -> AbstractContextManager[list[Tensor]]:
        """A context with the bytes of each tensor; ExposureGone after it if they changed."""
        ...


class CudaIpcMemory:
    """IpcMemory of one CUDA device; exports of another device are read over the link of the two."""

    def __init__(self, device: torch.device, folder: Path) -> None:
        """In the folder, which all who lend and borrow share, readers say that they are there."""
        self._device = device
        self._folder = folder
        self._lock = Lock()
        self._kept: list[CudaIpcExport] = []
        """Loans that have ended and are still read: by no more than there are readers."""

    def lend(self, tensors: Sequence[Tensor], *, with_sums: bool = True) -> "CudaIpcExport":
        """TransferError where the driver lends nothing."""
        self._free()
        with self._entered():
            return CudaIpcExport(self, tensors, with_sums=with_sums)

    @contextmanager
    def borrowed(self, lent: IpcHandle) -> Iterator[list[Tensor]]:
        with reading(self._folder, lent.key), self._entered(), ExitStack() as opened:
            bases = [opened.enter_context(_opened(one)) for one in lent.pieces]
            places = (lent.stamp, *lent.parts)
            stamp, *parts = (_view(bases, one, self._device) for one in places)
            _check(stamp, lent)
            try:
                yield parts
            finally:
                # All that the reader has begun is over before the memory is looked at, or leaves.
                _settle(self._device)
            _check(stamp, lent)

    @property
    def device(self) -> torch.device:
        return self._device

    @property
    def folder(self) -> Path:
        return self._folder

    def keep(self, loan: "CudaIpcExport") -> None:
        """The loan has ended, and a reader does not let go of its memory."""
        with self._lock:
            self._kept.append(loan)

    def _free(self) -> None:
        with self._lock:
            self._kept = [one for one in self._kept if not one.is_free(0.0)]

    @contextmanager
    def _entered(self) -> Iterator[None]:
        with current(self._device):
            # A kernel makes the device's context that of this thread, which the driver asks for.
            torch.zeros(1, device=self._device)
            yield


class CudaIpcExport:
    """Contiguous tensors of one device, and the stamp that says that they are lent."""

    def __init__(
        self, memory: CudaIpcMemory, tensors: Sequence[Tensor], *, with_sums: bool
    ) -> None:
        self._memory = memory
        device, key = memory.device, secrets.token_bytes(KEY_BYTES)
        self._stamp = torch.frombuffer(bytearray(key), dtype=torch.uint8).to(device)
        self._held: tuple[Tensor, ...] = tuple(tensors)
        # All that was asked of the device for these tensors is done when others can read them.
        _settle(device)
        pieces: dict[str, int] = {}
        stamp, *parts = (_place(one, pieces) for one in (self._stamp, *tensors))
        self.lent = IpcHandle(
            key=key.hex(),
            pieces=tuple(pieces),
            stamp=stamp,
            parts=tuple(parts),
            sums=sums_of(tensors) if with_sums else (),
        )
        self._readers = ReaderLocks(memory.folder, self.lent.key)
        self._is_open = True

    def end(self) -> None:
        """Its memory is free when this returns, or kept for as long as a reader hangs."""
        if not self._is_open:
            return
        self._is_open = False
        self._readers.refuse()
        self._stamp.zero_()
        _settle(self._stamp.device)
        if not self.is_free(READERS_S):
            self._memory.keep(self)

    def is_free(self, within_s: float) -> bool:
        """Whether all readers close its memory within that time, so that it is let go."""
        if not self._readers.are_gone(within_s):
            return False
        self._held = ()
        return True


def read(memory: IpcMemory, lent: IpcHandle, into: Sequence[Tensor]) -> None:
    """Tensors, each contiguous and as large as what was lent, have what was lent."""
    require_alike(lent, into)
    with memory.borrowed(lent) as parts:
        for one, part in zip(into, parts, strict=True):
            _bytes(one).copy_(part)
    if sums_of(into) != lent.sums:
        raise TransferError(f"what was lent under {lent.key[:8]} arrived with another sum")


def sums_of(tensors: Sequence[Tensor]) -> tuple[int, ...]:
    """Of each its words of 64 bits added up, or its bytes where they make no whole words."""
    flats = [_bytes(one) for one in tensors]
    words = [one.view(torch.int64) if _is_words(one) else one for one in flats]
    found = torch.stack([one.sum(dtype=torch.int64) for one in words]) if words else torch.empty(0)
    return tuple(found.tolist())


def require_alike(lent: IpcHandle, tensors: Sequence[Tensor]) -> None:
    """TransferError unless as many tensors of these sizes were lent."""
    sizes, found = [one.nbytes for one in tensors], [one.num_bytes for one in lent.parts]
    if sizes != found:
        told = f"{len(found)} of {sum(found)}"
        message = f"expected {len(sizes)} tensors of {sum(sizes)} bytes in all, found {told}"
        raise TransferError(message, retryable=False)


def _is_words(flat: Tensor) -> bool:
    return flat.numel() % 8 == 0 and flat.storage_offset() % 8 == 0


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.detach().view(-1).view(torch.uint8)


def _settle(device: torch.device) -> None:
    """What this thread has asked of the device is done; other streams may be in a capture."""
    torch.cuda.current_stream(device).synchronize()


def _place(tensor: Tensor, pieces: dict[str, int]) -> MemoryRange:
    """Where it lies in a piece of the driver's, which is noted if it is a new one."""
    if not tensor.is_contiguous():
        raise TransferError("expected contiguous tensors to lend", retryable=False)
    if tensor.numel() == 0:
        return MemoryRange(piece=0, at=0, num_bytes=0)
    pointer = tensor.data_ptr()
    base, size = ctypes.c_uint64(), ctypes.c_size_t()
    _ask(
        "cuMemGetAddressRange_v2",
        ctypes.byref(base),
        ctypes.byref(size),
        ctypes.c_uint64(pointer),
    )
    handle = _Handle()
    _ask("cuIpcGetMemHandle", ctypes.byref(handle), base)
    piece = pieces.setdefault(bytes(handle.data).hex(), len(pieces))
    return MemoryRange(piece=piece, at=pointer - base.value, num_bytes=tensor.nbytes)


@contextmanager
def _opened(handle: str) -> Iterator[int]:
    """The address of another process's piece of memory in this one."""
    data = _unhexed(handle)
    if len(data) != HANDLE_BYTES:
        message = f"expected a handle of {HANDLE_BYTES} bytes, found {len(data)}"
        raise TransferError(message, retryable=False)
    base = ctypes.c_uint64()
    given = _Handle.from_buffer_copy(data)
    _ask("cuIpcOpenMemHandle_v2", ctypes.byref(base), given, ctypes.c_uint(PEERS))
    try:
        yield base.value
    finally:
        _ask("cuIpcCloseMemHandle", base)


def _view(bases: Sequence[int], place: MemoryRange, device: torch.device) -> Tensor:
    """The bytes there, not copied; none of them are on the device that reads."""
    if place.num_bytes == 0:
        return torch.empty(0, dtype=torch.uint8, device=device)
    if not 0 <= place.piece < len(bases):
        message = f"expected one of {len(bases)} pieces, found number {place.piece}"
        raise TransferError(message, retryable=False)
    return torch.as_tensor(_Bytes(bases[place.piece] + place.at, place.num_bytes))


def _check(stamp: Tensor, lent: IpcHandle) -> None:
    if bytes(stamp.tolist()) != _unhexed(lent.key):
        raise ExposureGone(f"memory lent under {lent.key[:8]} is not lent any more")


def _unhexed(text: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError as error:
        raise TransferError(f"expected hex digits: {error}", retryable=False) from error


class _Bytes:
    """An address, as torch takes it for a tensor."""

    def __init__(self, address: int, num_bytes: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (num_bytes,),
            "typestr": "|u1",
            "data": (address, False),
            "strides": None,
            "version": 3,
        }


class _Handle(ctypes.Structure):
    _fields_ = [("data", ctypes.c_ubyte * HANDLE_BYTES)]


def _ask(what: str, *arguments: Any) -> None:
    status = getattr(_driver(), what)(*arguments)
    if status != 0:
        raise TransferError(f"{what} of CUDA's driver answered with status {status}")


@cache
def _driver() -> Any:
    try:
        return ctypes.CDLL(DRIVER)
    except OSError as error:
        message = f"memory of a device is lent by {DRIVER}, which cannot be loaded: {error}"
        raise TransferError(message, retryable=False) from error
