"""Reads over a Transfer Engine that answers when its reader has given up already."""

import ctypes
import importlib
import sys
from types import ModuleType

import pytest

from gyre.types.errors import TransferError

DATA = bytes(range(256)) * 4_096


class Engine:
    """Memory of this process, read at once or, while its peer is held up, long after."""

    def __init__(self):
        self.is_held_up = False
        self.registered = {}
        self._waiting = []

    def initialize(self, host, handshake, protocol, devices):
        return 0

    def get_rpc_port(self):
        return 1

    def register_memory(self, address, num_bytes):
        self.registered[address] = num_bytes
        return 0

    def unregister_memory(self, address):
        del self.registered[address]
        return 0

    def transfer_sync_read(self, peer, target, address, num_bytes):
        if self.is_held_up and num_bytes > 64:
            self._waiting.append((target, address, num_bytes))
            return -1
        ctypes.memmove(target, address, num_bytes)
        return 0

    def answer(self):
        for one in self._waiting:
            ctypes.memmove(*one)


@pytest.fixture
def transport(monkeypatch):
    library = ModuleType("mooncake.engine")
    library.TransferEngine = Engine
    monkeypatch.setitem(sys.modules, "mooncake", ModuleType("mooncake"))
    monkeypatch.setitem(sys.modules, "mooncake.engine", library)
    name = "gyre.transports.mooncake"
    monkeypatch.delitem(sys.modules, name, raising=False)
    made = importlib.import_module(name).MooncakeTransport("127.0.0.1")
    yield made
    made.close()
    del sys.modules[name]


def read(transport, given):
    into = bytearray(given.num_bytes)
    transport.read(given, 0, memoryview(into))
    return bytes(into)


def test_bytes_that_come_late_are_in_nobodys_way(transport):
    given = transport.expose([memoryview(DATA)], version=1)
    into = bytearray(len(DATA))
    transport._engine.is_held_up = True
    with pytest.raises(TransferError, match="1048576 bytes cannot be read"):
        transport.read(given, 0, memoryview(into))
    transport._engine.is_held_up = False
    other = transport.expose([memoryview(bytes(len(DATA)))], version=2)
    before = read(transport, other)
    transport._engine.answer()

    assert bytes(len(DATA)) == before == bytes(into) == read(transport, other)
    assert DATA == read(transport, given)


def test_reads_share_memory_that_is_registered_once(transport):
    given = transport.expose([memoryview(DATA)], version=1)
    read(transport, given)
    before = dict(transport._engine.registered)

    assert DATA == read(transport, given)
    assert before == transport._engine.registered


def test_a_read_of_any_length_is_whole(transport, monkeypatch):
    monkeypatch.setattr(sys.modules[type(transport).__module__], "READ_BYTES", 1_000)
    given = transport.expose([memoryview(DATA)], version=1)

    assert DATA == read(transport, given)
