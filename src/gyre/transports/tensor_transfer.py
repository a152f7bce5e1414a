"""Tensors that one process exposes are put together in another, cut as that one needs them.

Rule 1: nothing is given out that was not checked by hash, block by block, down from the bundle.
Rule 2: parts of one reading are of one version, or there is none.
"""

import re
import secrets
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from gyre.transports.tensor_layout import (
    ALIGNED_BYTES,
    BLOCK_BYTES,
    MOST_BYTES,
    MOST_SHEET_BYTES,
    SliceCopy,
    TensorEntry,
    TensorLayout,
    TensorSlice,
    laid_out,
    planned,
    read_sheet,
    rounded,
    written,
)
from gyre.types.errors import ExposureGone, TransferError
from gyre.types.protocols import Exposure, TensorBundle, Transport

MOST = 2**63
"""Versions and addresses are below this."""
_KEY = re.compile(r"[0-9a-f]{32}")


def new_key() -> str:
    return secrets.token_hex(16)


def check_read(given: Exposure, at: int, num_bytes: int, *, kind: str) -> None:
    """The description is one of this transport, and the bytes wanted lie within it."""
    if given.kind != kind:
        raise refused(given, f"expected one of {kind}, found one of {given.kind}")
    if _KEY.fullmatch(given.key) is None or not 0 <= given.num_bytes <= MOST_BYTES:
        raise refused(given, f"expected a key and a size, found {given.num_bytes} bytes")
    if not (0 <= given.version < MOST and 0 <= given.at < MOST):
        raise refused(given, "expected a version and an address")
    if at < 0 or at + num_bytes > given.num_bytes:
        raise refused(given, f"expected bytes within {given.num_bytes}, found {at} + {num_bytes}")


def refused(given: Exposure, found: str) -> TransferError:
    """A description that no second attempt makes better."""
    return TransferError(f"{given.peer}: {found}", retryable=False)


def outdated(given: Exposure) -> ExposureGone:
    return ExposureGone(f"{given.peer}: version {given.version} is no longer held there")


READ_BLOCKS = 16
"""Blocks that are read together."""
Bytes = npt.NDArray[np.uint8]
"""Of one dimension, one after the other in memory."""
_PADDING = memoryview(bytes(ALIGNED_BYTES))


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorBytes:
    """A tensor, or a box of one, and its bytes, the last dimension closest together."""

    dtype: str
    cut: TensorSlice
    data: Bytes


def expose(transport: Transport, parts: Mapping[str, TensorBytes], *, version: int) -> TensorBundle:
    """Others can have these tensors until the exposure is withdrawn."""
    tensors, num_bytes = laid_out({name: (one.dtype, one.cut) for name, one in parts.items()})
    pieces = [
        piece
        for name, one in tensors.items()
        for piece in _padded(parts[name].data.data, name, one)
    ]
    sheet = TensorLayout(tensors=tensors, num_bytes=num_bytes, hashes=_hashes(pieces))
    text = written(sheet)
    head = [memoryview(text), _PADDING[: rounded(len(text)) - len(text)]]
    exposure = transport.expose([*head, *pieces], version=version)
    return TensorBundle(
        exposure=exposure, sheet_bytes=len(text), sheet_xxh3=xxhash.xxh3_128_hexdigest(text)
    )


def read_sheet_of(transport: Transport, given: TensorBundle) -> TensorLayout:
    """What the bundle holds, and nothing of it."""
    if not 0 < given.sheet_bytes <= min(MOST_SHEET_BYTES, given.num_bytes):
        message = f"expected a sheet of up to {MOST_SHEET_BYTES} bytes, found {given.sheet_bytes}"
        raise TransferError(message, retryable=False)
    text = bytearray(given.sheet_bytes)
    transport.read(given.exposure, 0, memoryview(text))
    found = xxhash.xxh3_128_hexdigest(text)
    if found != given.sheet_xxh3:
        raise TransferError(f"a sheet arrived with hash {found}, expected {given.sheet_xxh3}")
    room = given.num_bytes - rounded(given.sheet_bytes)
    return read_sheet(bytes(text), room_bytes=room)


def fetch(
    transport: Transport,
    given: Sequence[TensorBundle],
    wanted: Mapping[str, tuple[str, TensorSlice]],
) -> dict[str, TensorBytes]:
    """By key of what is wanted: the box of the tensor of that name, from its holders."""
    versions = {one.version for one in given}
    if len(versions) > 1:
        message = f"expected parts of one version, found {sorted(versions)}"
        raise TransferError(message, retryable=False)
    sheets = [read_sheet_of(transport, one) for one in given]
    plans = {key: _planned(name, cut, sheets) for key, (name, cut) in wanted.items()}
    spans: list[list[tuple[int, int]]] = [[] for _ in given]
    for plan in plans.values():
        for one in plan.copies:
            spans[one.holder].append(_span(plan.held[one.holder], one))
    stores = [
        _Store(transport, bundle, sheet, needed)
        for bundle, sheet, needed in zip(given, sheets, spans, strict=True)
    ]
    return {key: _assembled(plan, stores) for key, plan in plans.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """How one wanted box is made."""

    dtype: str
    width: int
    cut: TensorSlice
    held: Mapping[int, TensorEntry]
    copies: Sequence[SliceCopy]


def _planned(name: str, cut: TensorSlice, sheets: Sequence[TensorLayout]) -> _Plan:
    held = {at: one.tensors[name] for at, one in enumerate(sheets) if name in one.tensors}
    dtypes = sorted({one.dtype for one in held.values()})
    if len(dtypes) != 1:
        message = f"{name}: expected somebody who holds it in one type, found {dtypes or 'nobody'}"
        raise TransferError(message, retryable=False)
    copies = planned(cut, {at: one.cut for at, one in held.items()}, name)
    width = next(iter(held.values())).width
    return _Plan(dtype=dtypes[0], width=width, cut=cut, held=held, copies=copies)


def _span(held: TensorEntry, copied: SliceCopy) -> tuple[int, int]:
    """Bytes from the first to the last row that is needed, counted from the first block."""
    shape, rows = held.cut.shape, copied.source[:1]
    if not rows:
        return held.at, held.at + held.width
    row_bytes = held.num_bytes // shape[0]
    return held.at + rows[0].start * row_bytes, held.at + rows[0].stop * row_bytes


def _assembled(plan: _Plan, stores: Sequence["_Store"]) -> TensorBytes:
    shape = (*plan.cut.shape, plan.width)
    if len(plan.copies) == 1:
        (one,) = plan.copies
        rows = _rows(plan, one, stores)
        if rows.shape == shape:
            return TensorBytes(dtype=plan.dtype, cut=plan.cut, data=rows.reshape(-1))
    made = np.empty(shape, np.uint8)
    for one in plan.copies:
        rows = _rows(plan, one, stores)
        made[one.target] = rows[(slice(None), *one.source[1:])] if one.source else rows
    return TensorBytes(dtype=plan.dtype, cut=plan.cut, data=made.reshape(-1))


def _rows(plan: _Plan, copied: SliceCopy, stores: Sequence["_Store"]) -> Bytes:
    """The rows that the holder has, each in full."""
    held = plan.held[copied.holder]
    start, stop = _span(held, copied)
    inner = held.cut.shape[1:]
    outer = [one.stop - one.start for one in copied.source[:1]]
    return stores[copied.holder].bytes(start, stop).reshape(*outer, *inner, plan.width)


class _Store:
    """Blocks of one bundle that were read and checked."""

    def __init__(
        self,
        transport: Transport,
        given: TensorBundle,
        sheet: TensorLayout,
        needed: Sequence[tuple[int, int]],
    ) -> None:
        self._transport = transport
        self._given = given
        self._sheet = sheet
        self._base = rounded(given.sheet_bytes)
        runs = [self._read(first, last) for first, last in _runs(needed, sheet.block_bytes)]
        self._starts = [start for start, _ in runs]
        self._data = [data for _, data in runs]

    def bytes(self, start: int, stop: int) -> Bytes:
        at = bisect_right(self._starts, start) - 1
        offset = start - self._starts[at]
        return self._data[at][offset : offset + stop - start]

    def _read(self, first: int, last: int) -> tuple[int, Bytes]:
        """Blocks from the first to before the last, in one piece of memory."""
        start, stop = self._sheet.block(first)[0], self._sheet.block(last - 1)[1]
        data: Bytes = np.empty(stop - start, np.uint8)
        for block in range(first, last, READ_BLOCKS):
            end = min(block + READ_BLOCKS, last)
            low, high = self._sheet.block(block)[0] - start, self._sheet.block(end - 1)[1] - start
            into = data[low:high].data
            self._transport.read(self._given.exposure, self._base + start + low, into)
            for index in range(block, end):
                self._check(index, data, start)
        return start, data

    def _check(self, index: int, data: Bytes, start: int) -> None:
        low, high = self._sheet.block(index)
        found = xxhash.xxh3_64_hexdigest(data[low - start : high - start].data)
        if found != self._sheet.hashes[index]:
            expected = f"expected hash {self._sheet.hashes[index]}, found {found}"
            raise TransferError(f"block {index} of {self._given.exposure.peer}: {expected}")


def _runs(needed: Sequence[tuple[int, int]], block_bytes: int) -> Iterator[tuple[int, int]]:
    """Blocks that hold these spans, neighbours together: first, and the one after the last."""
    run: tuple[int, int] | None = None
    for start, stop in sorted(one for one in needed if one[0] < one[1]):
        first, last = start // block_bytes, -(-stop // block_bytes)
        if run is None:
            run = (first, last)
        elif first <= run[1]:
            run = (run[0], max(run[1], last))
        else:
            yield run
            run = (first, last)
    if run is not None:
        yield run


def _padded(data: memoryview, name: str, one: TensorEntry) -> Iterator[memoryview]:
    if data.nbytes != one.num_bytes:
        message = f"{name}: expected {one.num_bytes} bytes, found {data.nbytes}"
        raise TransferError(message, retryable=False)
    yield data
    yield _PADDING[: rounded(one.num_bytes) - one.num_bytes]


def _hashes(pieces: Sequence[memoryview]) -> list[str]:
    """Of every block of the pieces laid one after the other."""
    found: list[str] = []
    state: Any = xxhash.xxh3_64()
    room = BLOCK_BYTES
    for piece in pieces:
        at = 0
        while at < piece.nbytes:
            taken = min(room, piece.nbytes - at)
            state.update(piece[at : at + taken])
            at, room = at + taken, room - taken
            if room == 0:
                found.append(state.hexdigest())
                state, room = xxhash.xxh3_64(), BLOCK_BYTES
    if room < BLOCK_BYTES:
        found.append(state.hexdigest())
    return found
