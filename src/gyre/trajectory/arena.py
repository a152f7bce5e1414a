"""Append-only arrays that hold every token of an execution once."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int32]
Logprobs = NDArray[np.float32]


class Arena:
    """A growing one-dimensional array; what is appended never moves relative to its offset."""

    def __init__(self, dtype: type[np.int32] | type[np.float32], *, room: int = 1024) -> None:
        self._items: NDArray[Any] = np.empty(room, dtype=dtype)
        self._length = 0

    def __len__(self) -> int:
        return self._length

    @property
    def nbytes(self) -> int:
        return self._items.nbytes

    def append(self, raw: bytes) -> int:
        """Offset at which the little-endian items of `raw` now stand."""
        new = np.frombuffer(raw, dtype=self._items.dtype)
        start, end = self._length, self._length + len(new)
        if end > len(self._items):
            # Half as much again, because at most a third of the memory may then be spare.
            grown = np.empty(max(end, len(self._items) * 3 // 2), dtype=self._items.dtype)
            grown[:start] = self._items[:start]
            self._items = grown
        self._items[start:end] = new
        self._length = end
        return start

    def slice(self, start: int, length: int) -> NDArray[Any]:
        """A view, valid until the next append; copy it to keep it."""
        return self._items[start : start + length]
