"""Rows as one safetensors file: flat arrays, and offsets that say where each row begins.

For N rows with T tokens and M targets in all:

row_offsets       int64[N+1]  row i is ids[row_offsets[i]:row_offsets[i+1]], and so is its mask
target_offsets    int64[N+1]  the same for target_positions and logprobs
version_offsets   int64[N+1]  the same for versions; a row whose versions are unknown has none
ids               int32[T]
target_positions  int32[M]    counted from the beginning of the row
logprobs          float32[M]
versions          int32[up to M]
execution         int32[N]    which of the metadata's `executions`
leaf              int32[N]    the call that ends the row
role              uint8[N]    which of the metadata's `roles`
mask              bool[T]     whether the id is a target

The metadata is one entry, `gyre`: JSON with how the rows were drawn, `executions` and `roles`.
"""

import json
import shutil
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray
from safetensors import safe_open

from gyre.export.rows import ExecutionRows, Settings, mask
from gyre.trajectory.selection import Row
from gyre.types.call_records import PRIORITY
from gyre.types.ids import ExecutionId

ARRAYS: Mapping[str, tuple[str, str]] = {
    "row_offsets": ("I64", "<i8"),
    "target_offsets": ("I64", "<i8"),
    "version_offsets": ("I64", "<i8"),
    "ids": ("I32", "<i4"),
    "target_positions": ("I32", "<i4"),
    "logprobs": ("F32", "<f4"),
    "versions": ("I32", "<i4"),
    "execution": ("I32", "<i4"),
    "leaf": ("I32", "<i4"),
    "role": ("U8", "u1"),
    "mask": ("BOOL", "?"),
}
"""Each array's type in the file and in memory; widest items first, so that all are aligned."""


def write_rows(path: Path, executions: Iterable[ExecutionRows], settings: Settings) -> None:
    """Each array grows in a file of its own, because the whole begins with the sizes of all."""
    with ExitStack() as stack:
        # Beside the whole, because there is room for it there.
        folder = stack.enter_context(TemporaryDirectory(dir=path.parent, prefix=f".{path.name}."))
        arrays = _Arrays(
            {name: stack.enter_context((Path(folder) / name).open("w+b")) for name in ARRAYS}
        )
        for execution in executions:
            arrays.add(execution.execution, execution.rows)
        with path.open("wb") as whole:
            whole.write(arrays.head(settings))
            arrays.copy_to(whole)
    # The frame is made here, so the library itself says whether it can read it.
    with safe_open(path, framework="np") as file:
        file.keys()


class _Arrays:
    """The arrays under way, each at the end of its file."""

    def __init__(self, files: Mapping[str, BinaryIO]) -> None:
        self._files = files
        self._executions: list[ExecutionId] = []
        self._ends = dict.fromkeys(("row_offsets", "target_offsets", "version_offsets"), 0)
        for name in self._ends:
            self._append(name, [0])

    def add(self, execution: ExecutionId, rows: Sequence[Row]) -> None:
        self._executions.append(execution)
        for entry in rows:
            versions = entry.ids[:0] if entry.versions is None else entry.versions
            self._append("execution", [len(self._executions) - 1])
            self._append("leaf", [entry.leaf])
            self._append("role", [PRIORITY.index(entry.role)])
            self._append("ids", entry.ids)
            self._append("mask", mask(entry))
            self._append("target_positions", entry.targets)
            self._append("logprobs", entry.logprobs)
            self._append("versions", versions)
            self._end("row_offsets", len(entry.ids))
            self._end("target_offsets", len(entry.targets))
            self._end("version_offsets", len(versions))

    def head(self, settings: Settings) -> bytes:
        """What a safetensors file begins with: the length of a JSON object, and the object."""
        about = {**settings, "executions": self._executions, "roles": PRIORITY}
        head: dict[str, Any] = {"__metadata__": {"gyre": json.dumps(about, sort_keys=True)}}
        start = 0
        for name, (kind, dtype) in ARRAYS.items():
            size = self._files[name].tell()
            head[name] = {
                "dtype": kind,
                "shape": [size // np.dtype(dtype).itemsize],
                "data_offsets": [start, start + size],
            }
            start += size
        text = json.dumps(head).encode()
        text += b" " * (-len(text) % 8)
        return len(text).to_bytes(8, "little") + text

    def copy_to(self, whole: BinaryIO) -> None:
        for file in self._files.values():
            file.seek(0)
            shutil.copyfileobj(file, whole)

    def _append(self, name: str, values: Sequence[int] | NDArray[Any]) -> None:
        self._files[name].write(np.asarray(values, dtype=ARRAYS[name][1]).tobytes())

    def _end(self, name: str, length: int) -> None:
        self._ends[name] += length
        self._append(name, [self._ends[name]])
