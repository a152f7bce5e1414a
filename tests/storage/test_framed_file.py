"""Frames in a file: whole or not there, one writer where it asks for that."""

import os
from array import array
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gyre.storage.framed_file import (
    FramedFile,
    framed,
    locked,
    next_sound,
    payload_at,
    scan,
)
from gyre.types.errors import LogDamaged

MAGIC = b"GYRETEST"


def written(path, payloads):
    file = FramedFile(path, magic=MAGIC)
    for payload in payloads:
        file.append_raw(framed(payload))
    file.close()
    return path


@given(st.lists(st.binary(min_size=1, max_size=40), max_size=8), st.integers(0, 400))
def test_a_file_cut_anywhere_holds_its_first_frames(tmp_path_factory, payloads, size):
    path = written(tmp_path_factory.mktemp("frames") / "x", payloads)
    data = path.read_bytes()[:size]
    path.write_bytes(data)
    found = scan(path, magic=MAGIC, what="test")

    assert payloads[: len(found.payloads)] == [payload for _, payload in found.payloads]
    assert len(data) == found.sound_bytes + found.torn_bytes
    assert all(payload == payload_at(data, at) for at, payload in found.payloads)


def test_a_frame_after_damage_is_reported_with_both_places(tmp_path):
    path = written(tmp_path / "x", [b"one", b"two", b"three"])
    data = bytearray(path.read_bytes())
    data[len(MAGIC) + 8] ^= 1
    path.write_bytes(data)

    with pytest.raises(LogDamaged, match=r"damaged at byte 8 \(record 1\).*at byte 19"):
        scan(path, magic=MAGIC, what="test")


@given(st.binary(max_size=60), st.binary(min_size=1, max_size=300), st.binary(max_size=60))
def test_a_sound_frame_is_found_behind_anything(before, payload, after):
    data = before + framed(payload) + after
    found = next_sound(data, 0)

    assert found is not None
    assert found <= len(before)
    assert payload_at(data, found) is not None
    assert all(payload_at(data, at) is None for at in range(found))


class Counted(bytes):
    """Bytes that count how many of them were read in slices."""

    num_read = 0

    def __getitem__(self, key):
        found = super().__getitem__(key)
        self.num_read += len(found)
        return found


def test_the_search_behind_a_torn_record_of_token_ids_reads_in_proportion_to_its_size():
    """Every id looks like the length of a frame that is half as long as the rest."""

    def num_read(num_ids):
        data = Counted(array("I", [2 * num_ids] * num_ids).tobytes())
        assert None is next_sound(data, 1)
        return data.num_read

    assert 0 < num_read(4000) < 3 * num_read(2000)


def test_what_is_cut_off_is_not_in_the_file_and_the_next_frame_takes_its_place(tmp_path):
    path = written(tmp_path / "x", [b"one"])
    file = FramedFile(path, magic=MAGIC, sound_bytes=path.stat().st_size)
    before = file.size_bytes
    file.append_raw(framed(b"two"))
    file.cut(before)
    file.append_raw(framed(b"three"))
    file.close()

    found = scan(path, magic=MAGIC, what="test")
    assert [b"one", b"three"] == [payload for _, payload in found.payloads]


def test_a_file_that_cannot_be_begun_is_let_go():
    before = set(Path("/proc/self/fd").iterdir())
    with pytest.raises(OSError, match="Invalid argument"):
        FramedFile(Path("/dev/full"), magic=MAGIC)

    assert before == set(Path("/proc/self/fd").iterdir())


def test_one_lock_at_a_time(tmp_path):
    first = locked(tmp_path / "x", create=True)
    assert first is not None
    assert None is locked(tmp_path / "x", create=True)

    os.close(first)
    again = locked(tmp_path / "x", create=False)
    assert again is not None
    os.close(again)


def test_a_lock_on_what_is_not_there_is_not_made(tmp_path):
    with pytest.raises(FileNotFoundError):
        locked(tmp_path / "x", create=False)
    assert [] == list(tmp_path.iterdir())
