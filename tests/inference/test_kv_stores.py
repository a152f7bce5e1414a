"""Cached blocks go over a transport by their description, and stay until they are dropped."""

import array
import json

import pytest
import torch

from gyre.inference.engine.request import KVBlocks
from gyre.inference.kv_transfer import TransportKvStore
from gyre.transports.shared_memory import SharedTransport
from gyre.types.errors import NotFound, RequestError

KV_BYTES = 2**16


def blocks():
    values = torch.randn(2, 2, 3, 4, 8, generator=torch.Generator().manual_seed(7))
    return KVBlocks(token_ids=array.array("i", range(12)).tobytes(), version=3, values=values)


@pytest.fixture
def share(tmp_path):
    return tmp_path


def kv_store(share, owner, kv_bytes=KV_BYTES):
    return TransportKvStore(SharedTransport(share, owner=owner), kv_bytes=kv_bytes)


def test_blocks_arrive_as_they_were_and_can_be_taken_until_they_are_dropped(share):
    one, two, given = kv_store(share, "cell-0"), kv_store(share, "cell-1"), blocks()
    name, num_bytes = one.put(given, "call-1")
    found = [two.take(name) for _ in range(2)]
    one.drop(name)
    one.drop(name)

    assert given.values.nbytes < num_bytes
    for taken in found:
        assert (given.token_ids, 3) == (taken.token_ids, taken.version)
        assert torch.equal(given.values, taken.values)
    with pytest.raises(NotFound, match="no cached blocks"):
        two.take(name)
    assert [] == list(share.iterdir())


def test_more_than_an_engine_can_hold_is_refused_before_it_is_read(share):
    name, _ = kv_store(share, "cell-0").put(blocks(), "call-1")
    larger = json.loads(name)
    larger["exposure"]["num_bytes"] = 2**40

    with pytest.raises(RequestError, match="expected up to"):
        kv_store(share, "cell-1").take(json.dumps(larger))


@pytest.mark.parametrize("name", ["", "call-1", "{}", "[" * 5000, '{"exposure": null}'])
def test_what_no_engine_has_put_is_refused(share, name):
    with pytest.raises(RequestError, match="expected what an engine put"):
        kv_store(share, "cell-1").take(name)


def test_bytes_that_are_no_blocks_are_refused(share):
    one = kv_store(share, "cell-0")
    name, _ = one.put(blocks(), "call-1")
    (path,) = share.iterdir()
    data = bytearray(path.read_bytes())
    data[-200] ^= 1
    path.write_bytes(data)

    with pytest.raises(RequestError, match=r"expected cached blocks.*hash"):
        kv_store(share, "cell-1").take(name)
