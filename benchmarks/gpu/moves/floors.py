"""Bytes per second of the ways that weights, state and cached blocks take, as found here."""

import os
from collections.abc import Callable
from pathlib import Path
from time import perf_counter

import torch
import xxhash

BYTES = 2**30
DISK_BYTES = 2**28
RUNS = 3


def best(work: Callable[[], object], num_bytes: int) -> float:
    """Bytes per second of the fastest of a few runs."""
    found = []
    for _ in range(RUNS):
        _settle()
        began = perf_counter()
        work()
        _settle()
        found.append(perf_counter() - began)
    return num_bytes / min(found)


def measure(folder: Path, share: Path, *, scale: int = 1) -> dict[str, float]:
    """Each way alone; smaller by `scale` where it only has to run."""
    num_bytes = BYTES // scale
    on_gpu = torch.cuda.is_available()
    host = torch.ones(num_bytes, dtype=torch.uint8, pin_memory=on_gpu)
    other = torch.empty_like(host)
    found = {"memory copy": best(lambda: other.copy_(host), num_bytes)}
    view = host.numpy().data
    found["hash"] = best(lambda: xxhash.xxh3_128(view).digest(), num_bytes)
    path = share / "floor"
    found["shared memory, written"] = best(lambda: _write(path, view), num_bytes)
    found["shared memory, read"] = best(lambda: _read(path, other.numpy().data), num_bytes)
    path.unlink()
    part = view[: DISK_BYTES // scale]
    found["disk, durable"] = best(lambda: _write(folder / "floor", part, sync=True), len(part))
    (folder / "floor").unlink()
    if on_gpu:
        device = torch.ones(num_bytes, dtype=torch.uint8, device="cuda")
        second = torch.empty_like(device)
        found["host to device"] = best(lambda: device.copy_(host, non_blocking=True), num_bytes)
        found["device to host"] = best(lambda: host.copy_(device, non_blocking=True), num_bytes)
        plain = torch.empty(num_bytes, dtype=torch.uint8)
        plain.fill_(1)
        found["unpinned host to device"] = best(lambda: device.copy_(plain), num_bytes)
        found["device to unpinned host"] = best(lambda: plain.copy_(device), num_bytes)
        # Read once and written once.
        found["device memory"] = best(lambda: second.copy_(device), 2 * num_bytes)
    return found


def _write(path: Path, data: memoryview, *, sync: bool = False) -> None:
    with path.open("wb", buffering=0) as file:
        at = 0
        while at < len(data):
            at += os.write(file.fileno(), data[at:])
        if sync:
            os.fdatasync(file.fileno())


def _read(path: Path, into: memoryview) -> None:
    with path.open("rb", buffering=0) as file:
        done = 0
        while done < len(into):
            done += os.preadv(file.fileno(), [into[done:]], done)


def _settle() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
