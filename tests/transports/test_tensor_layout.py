"""A sheet is read as it was written, and nothing else is taken for one."""

import json

import pytest

from gyre.transports.tensor_layout import (
    BLOCK_BYTES,
    TensorLayout,
    TensorSlice,
    laid_out,
    read_sheet,
    rounded,
    written,
)
from gyre.types.errors import TransferError

PART = TensorSlice(whole=(8, 4), start=(2, 0), shape=(3, 4))


def a_sheet():
    tensors, num_bytes = laid_out(
        {
            "a": ("bfloat16", PART),
            "b": ("float32", TensorSlice.all_of(())),
            "c": ("uint8", TensorSlice.all_of((0,))),
        }
    )
    return TensorLayout(tensors=tensors, num_bytes=num_bytes, hashes=["0" * 16])


def changed(change):
    plain = json.loads(written(a_sheet()))
    change(plain)
    return json.dumps(plain).encode()


def test_a_sheet_is_read_as_it_was_written():
    sheet = a_sheet()

    assert sheet == read_sheet(written(sheet), room_bytes=sheet.num_bytes)


def test_tensors_lie_one_after_the_other_where_any_type_may_begin():
    sheet = a_sheet()

    assert [0, 64, 128] == [one.at for one in sheet.tensors.values()]
    assert [24, 4, 0] == [one.num_bytes for one in sheet.tensors.values()]
    assert 128 == sheet.num_bytes == rounded(127)


def test_the_last_block_ends_where_the_bytes_do():
    sheet = TensorLayout(tensors={}, num_bytes=BLOCK_BYTES + 64, hashes=[])

    assert [(0, BLOCK_BYTES), (BLOCK_BYTES, BLOCK_BYTES + 64)] == [sheet.block(0), sheet.block(1)]


@pytest.mark.parametrize(
    "change",
    [
        lambda one: one.update(num_bytes=2**40),
        lambda one: one.update(num_bytes=-64),
        lambda one: one.update(block_bytes=0),
        lambda one: one.update(block_bytes=63),
        lambda one: one.update(block_bytes=2**40),
        lambda one: one.update(hashes=[]),
        lambda one: one.update(hashes=["0" * 16] * 2),
        lambda one: one.update(hashes=["0"]),
        lambda one: one.update(more=1),
        lambda one: one["rows"].append(one["rows"][0]),
        lambda one: one["rows"][0].__setitem__(1, "float4"),
        lambda one: one["rows"][0].__setitem__(2, [8]),
        lambda one: one["rows"][0].__setitem__(3, [6, 0]),
        lambda one: one["rows"][0].__setitem__(3, [-1, 0]),
        lambda one: one["rows"][0].__setitem__(4, [-1, -4]),
        lambda one: one["rows"][0].__setitem__(5, 1),
        lambda one: one["rows"][0].__setitem__(5, -64),
        lambda one: one["rows"][0].__setitem__(5, 128),
        lambda one: one["rows"][0].__setitem__(5, 2**70),
        lambda one: one["rows"][1].__setitem__(4, [2**40] * 9),
        lambda one: one["rows"].append([]),
    ],
)
def test_numbers_that_do_not_fit_each_other_are_refused(change):
    with pytest.raises(TransferError, match="expected a sheet of tensors"):
        read_sheet(changed(change), room_bytes=128)


@pytest.mark.parametrize("text", [b"", b"\xff", b"[" * 10_000, b"{}", b"null"])
def test_what_is_no_sheet_is_refused(text):
    with pytest.raises(TransferError, match="expected a sheet of tensors"):
        read_sheet(text, room_bytes=128)


def test_a_type_whose_width_nobody_knows_is_named():
    with pytest.raises(TransferError, match=r"a: expected a type of .*, found complex64"):
        laid_out({"a": ("complex64", PART)})
