"""Bytes between a tensor, wherever it is, and a file: in parts, by several threads together."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import local

import torch
from torch import Tensor

LANES = 8
"""Threads: pages of a file in memory are made and copied by one at a fraction of memory's speed."""
PART_BYTES = 2**24
Move = Callable[[int, int], None]
"""Of the part of a tensor that begins at the first, and has as many bytes as the second."""


class StagedCopier:
    """Threads that stay, each with pinned memory of its own to meet a device by."""

    def __init__(self, *, lanes: int = LANES, part_bytes: int = PART_BYTES) -> None:
        self._threads = ThreadPoolExecutor(lanes, thread_name_prefix="ferry")
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

    def _all(self, num_bytes: int, move: Move) -> None:
        """Every part is moved, or the first error that one met is raised."""
        size = self._part_bytes
        moves = [
            self._threads.submit(move, start, min(size, num_bytes - start))
            for start in range(0, num_bytes, size)
        ]
        for one in moves:
            # All are waited for, because an error must leave nobody at work on the tensor.
            one.exception()
        for one in moves:
            one.result()

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
