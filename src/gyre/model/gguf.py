"""A GGUF file: its facts by name, and its tensors as float32, of the few types that we meet.

The layout: a magic number, counts, facts (key, type, value), one entry per tensor (name, sizes from
the innermost, type, offset), then the tensors, aligned.
"""

import mmap
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from gyre.types.errors import ModelError

MAGIC = b"GGUF"
VERSIONS = (2, 3)
ALIGNMENT = 32
_MOST_DIMENSIONS = 4

_NUMBERS = {0: "B", 1: "b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "?", 10: "<Q", 11: "<q",
            12: "<d"}  # fmt: skip
_STRING, _ARRAY = 8, 9

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class _Stored:
    """How one type lies in the file: blocks of some values in some bytes, and how to read them."""

    values: int
    num_bytes: int
    read: Callable[[NDArray[np.uint8]], Floats]


def _half(column: NDArray[np.uint8]) -> Floats:
    """Two bytes of every block as a column of numbers."""
    return np.ascontiguousarray(column).view("<f2").astype(np.float32)


def _read_q8_0(blocks: NDArray[np.uint8]) -> Floats:
    """A scale, then 32 whole numbers."""
    return _half(blocks[:, :2]) * np.ascontiguousarray(blocks[:, 2:]).view(np.int8)


def _read_q4_1(blocks: NDArray[np.uint8]) -> Floats:
    """A scale, a least value, then the lower halves of 16 bytes and after them the upper."""
    packed = blocks[:, 4:]
    steps = np.concatenate([packed & 15, packed >> 4], axis=1).astype(np.float32)
    return _half(blocks[:, :2]) * steps + _half(blocks[:, 2:4])


_TYPES = {
    0: _Stored(1, 4, lambda blocks: blocks.view("<f4").copy()),
    1: _Stored(1, 2, _half),
    3: _Stored(32, 20, _read_q4_1),
    8: _Stored(32, 34, _read_q8_0),
}
"""By the number that the format has for them: F32, F16, Q4_1 and Q8_0."""


@dataclass(frozen=True, slots=True)
class _Entry:
    shape: tuple[int, ...]
    """From the outermost, as everywhere else."""
    kind: int
    offset: int


class Gguf:
    """An open file; raises ModelError for what is no such file, cut short or of other types."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            with path.open("rb") as file:
                self._bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            message = f"{path}: expected a GGUF file: {error}"
            raise ModelError(message) from error
        self._at = 0
        try:
            self.facts, self._entries = self._head()
        except (struct.error, UnicodeDecodeError, KeyError) as error:
            self._bytes.close()
            message = f"{path}: expected a GGUF file, found other bytes at {self._at}: {error}"
            raise ModelError(message) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bytes.close()

    @property
    def names(self) -> list[str]:
        return list(self._entries)

    def fact(self, key: str) -> Any:
        if key not in self.facts:
            message = f"{self._path}: expected a value for {key}"
            raise ModelError(message)
        return self.facts[key]

    def tensor(self, name: str) -> Floats:
        """A copy, in float32."""
        entry = self._entries[name]
        stored = _TYPES.get(entry.kind)
        count = int(np.prod(entry.shape))
        if stored is None or count % stored.values:
            message = f"{self._path}: {name}: expected F32, F16, Q4_1 or Q8_0, found {entry.kind}"
            raise ModelError(message)
        num_blocks = count // stored.values
        begin, size = self._data + entry.offset, num_blocks * stored.num_bytes
        raw = self._bytes[begin : begin + size]
        if len(raw) < size:
            message = f"{self._path}: {name}: expected {size} bytes at {begin}, found {len(raw)}"
            raise ModelError(message)
        blocks = np.frombuffer(raw, dtype=np.uint8).reshape(num_blocks, stored.num_bytes)
        return stored.read(blocks).reshape(entry.shape)

    def _head(self) -> tuple[dict[str, Any], dict[str, _Entry]]:
        magic, version = self._bytes[:4], struct.unpack_from("<I", self._bytes, 4)[0]
        if magic != MAGIC or version not in VERSIONS:
            message = f"{self._path}: expected GGUF version 2 or 3, found {magic!r} {version}"
            raise ModelError(message)
        self._at = 8
        num_tensors, num_facts = self._number("<Q"), self._number("<Q")
        facts = {}
        for _ in range(num_facts):
            key = self._text()
            facts[key] = self._value(self._number("<I"))
        entries = {}
        for _ in range(num_tensors):
            name = self._text()
            dimensions = self._number("<I")
            if dimensions > _MOST_DIMENSIONS:
                message = f"{self._path}: {name}: expected at most 4 sizes, found {dimensions}"
                raise ModelError(message)
            sizes = [self._number("<Q") for _ in range(dimensions)]
            kind, offset = self._number("<I"), self._number("<Q")
            entries[name] = _Entry(tuple(reversed(sizes)), kind, offset)
        alignment = facts.get("general.alignment", ALIGNMENT)
        self._data = -(-self._at // alignment) * alignment
        return facts, entries

    def _number(self, form: str) -> Any:
        value = struct.unpack_from(form, self._bytes, self._at)[0]
        self._at += struct.calcsize(form)
        return value

    def _text(self) -> str:
        size = self._number("<Q")
        raw = self._bytes[self._at : self._at + size]
        if len(raw) < size:
            message = f"{size} bytes of text"
            raise struct.error(message)
        self._at += size
        return raw.decode()

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._text()
        if kind == _ARRAY:
            inner, count = self._number("<I"), self._number("<Q")
            return [self._value(inner) for _ in range(count)]
        return self._number(_NUMBERS[kind])
