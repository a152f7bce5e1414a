"""GGUF files read back as they were written, number by number; and files that are none."""

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.model.support.gguf_files import f16, f32, gguf, q4_1, q8_0, small_model

from gyre.model.smollm2 import Gguf
from gyre.types.errors import ModelError

VALUES = np.random.default_rng(0).normal(0, 1, (4, 64)).astype(np.float32)


def slowly_q8_0(raw):
    out = []
    for at in range(0, len(raw), 34):
        (scale,) = struct.unpack_from("<e", raw, at)
        out += [np.float32(scale) * one for one in struct.unpack_from("<32b", raw, at + 2)]
    return out


def slowly_q4_1(raw):
    out = []
    for at in range(0, len(raw), 20):
        scale, least = (np.float32(one) for one in struct.unpack_from("<ee", raw, at))
        packed = raw[at + 4 : at + 20]
        out += [scale * np.float32(one & 15) + least for one in packed]
        out += [scale * np.float32(one >> 4) + least for one in packed]
    return out


@pytest.mark.parametrize(
    ("store", "slowly"),
    [
        (f32, lambda raw: struct.unpack("<256f", raw)),
        (f16, lambda raw: struct.unpack("<256e", raw)),
        (q8_0, slowly_q8_0),
        (q4_1, slowly_q4_1),
    ],
)
def test_tensors_of_every_type_are_read_as_a_loop_reads_them(tmp_path, store, slowly):
    path = tmp_path / "one.gguf"
    path.write_bytes(gguf({"key": "value"}, {"first": (VALUES, f32), "one": (VALUES, store)}))
    expected = np.array(slowly(store(VALUES)[1]), dtype=np.float32).reshape(VALUES.shape)
    with Gguf(path) as file:
        found = file.tensor("one")

    assert np.array_equal(expected, found)
    assert np.abs(found - VALUES).max() < 0.2


def test_facts_of_every_kind_are_read(tmp_path):
    facts = {"text": "héé", "count": 7, "rate": 0.5, "yes": True, "list": ["a", "b"], "ids": [3, 4]}
    path = tmp_path / "one.gguf"
    path.write_bytes(gguf(facts, {}))
    with Gguf(path) as file:
        assert facts == file.facts
        assert [] == file.names
        with pytest.raises(ModelError, match="expected a value for nothing"):
            file.fact("nothing")


WHOLE = small_model(np.random.default_rng(0))


def read_all(path):
    with Gguf(path) as file:
        return [file.tensor(name) for name in file.names]


@given(size=st.integers(0, len(WHOLE) - 1))
def test_a_file_cut_anywhere_is_refused_or_lacks_a_tensor(tmp_path_factory, size):
    path = tmp_path_factory.mktemp("cut") / "one.gguf"
    path.write_bytes(WHOLE[:size])

    with pytest.raises(ModelError, match=r"one\.gguf: "):
        read_all(path)


@pytest.mark.parametrize("data", [b"", b"GGUF", b"GGUF\x09" + b"\0" * 40, b"PK" * 40])
def test_what_is_no_such_file_is_refused(tmp_path, data):
    path = tmp_path / "one.gguf"
    path.write_bytes(data)

    with pytest.raises(ModelError, match="expected"):
        Gguf(path)


def test_a_type_that_is_not_known_is_refused(tmp_path):
    path = tmp_path / "one.gguf"
    path.write_bytes(gguf({}, {"one": (VALUES, lambda _: (14, b"\0" * 512))}))

    with Gguf(path) as file, pytest.raises(ModelError, match=r"one: expected F32, .* found 14"):
        file.tensor("one")
