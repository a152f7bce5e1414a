"""Checksums of parts, against those of zlib."""

import zlib

from hypothesis import given
from hypothesis import strategies as st

from gyre.storage.framed_file import BLOCK_BYTES, Checksums


@given(st.binary(max_size=5 * BLOCK_BYTES), st.data())
def test_any_part_has_the_checksum_that_zlib_gives_it(data, draw):
    start = draw.draw(st.integers(0, len(data)))
    end = draw.draw(st.integers(start, len(data)))

    assert zlib.crc32(data[start:end]) == Checksums(data).of(start, end)


def test_a_part_of_millions_of_bytes_has_it_too():
    data = bytes(range(251)) * 10_000
    checksums = Checksums(data)
    for start, end in ((0, len(data)), (3, len(data) - 5), (1_000_001, 1_000_001)):
        assert zlib.crc32(data[start:end]) == checksums.of(start, end)
