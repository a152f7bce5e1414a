"""The Transfer Engine of Mooncake: memory of a peer read from outside, by its address.

Rule 1: a read sees memory as it is at that moment, so the seal before the bytes is read before and
after them, and what lies between two equal seals is what was exposed.
Rule 2: memory that was exposed once is never given back while the process lives, because a peer
may be in the middle of it; the next exposure lies in it.
Rule 3: a read that failed may still be answered, so its bytes arrive in memory of our own, which
then serves for nothing else; the reader's is written to when they are there.
"""

import ctypes
import mmap
import struct
import threading
from collections.abc import Sequence

from gyre.transports.tensor_transfer import check_read, new_key, outdated
from gyre.types.errors import ConfigError, TransferError
from gyre.types.protocols import Exposure

try:
    from mooncake.engine import TransferEngine
except ModuleNotFoundError as error:
    message = "transport.kind mooncake: it is not there: pip install 'gyre-rl[mooncake]'"
    raise ConfigError(message) from error
except ImportError as error:
    message = (
        f"transport.kind mooncake: {error}; Debian has it in libibverbs1 and libnl-route-3-200"
    )
    raise ConfigError(message) from error

KIND = "mooncake"
BY_HANDSHAKE = "P2PHANDSHAKE"
"""Peers ask each other for what they hold; no further server is needed."""
SEAL = struct.Struct("<8s16sqQ")
SEAL_BYTES = 64
"""Before the bytes of an exposure, and as long as a tensor's alignment."""
MAGIC = b"gyreseal"
STEP_BYTES = 2**26
"""Memory is asked for in multiples of this, or in powers of two below it, to fit what follows."""
READ_BYTES = 2**25 - SEAL_BYTES
"""Most that is read at once; with the place of a seal it is a power of two."""


class _Arena:
    """Registered memory; bytes that are exposed or read lie in it, behind the place of a seal."""

    def __init__(self, num_bytes: int) -> None:
        self.memory = mmap.mmap(-1, num_bytes)
        self.num_bytes = num_bytes
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))

    def lay(self, parts: Sequence[memoryview]) -> None:
        """The parts follow the place of the seal, which is empty until they are all there."""
        at = SEAL_BYTES
        for one in parts:
            self.memory[at : at + one.nbytes] = one
            at += one.nbytes

    def found(self, num_bytes: int) -> memoryview:
        """Bytes that were read."""
        return memoryview(self.memory)[SEAL_BYTES : SEAL_BYTES + num_bytes]

    def seal(self, text: bytes) -> None:
        self.memory[: len(text)] = text

    def unseal(self) -> None:
        self.memory[:SEAL_BYTES] = bytes(SEAL_BYTES)

    def abandon(self) -> None:
        """Its addresses stay taken, and nothing of the machine's memory is behind them."""
        self.memory.madvise(mmap.MADV_DONTNEED)


class MooncakeTransport:
    """A transport by Mooncake's Transfer Engine; any process that reaches its port can read."""

    def __init__(self, host: str, *, protocol: str = "tcp", devices: str = "") -> None:
        self._engine = TransferEngine()
        status = self._engine.initialize(host, BY_HANDSHAKE, protocol, devices)
        if status != 0:
            message = f"transport: no Transfer Engine on {host} over {protocol} ({status})"
            raise ConfigError(message)
        self._peer = f"{host}:{self._engine.get_rpc_port()}"
        self._lock = threading.Lock()
        self._free: list[_Arena] = []
        self._held: dict[str, _Arena] = {}
        self._written: list[_Arena] = []
        """Which reads fill; those of reads that failed stay here for good."""

    def expose(self, parts: Sequence[memoryview], *, version: int) -> Exposure:
        key, num_bytes = new_key(), sum(one.nbytes for one in parts)
        arena = self._room(_size(SEAL_BYTES + num_bytes))
        arena.lay(parts)
        arena.seal(_seal(key, version, num_bytes))
        with self._lock:
            self._held[key] = arena
        return Exposure(
            kind=KIND,
            peer=self._peer,
            key=key,
            version=version,
            num_bytes=num_bytes,
            at=arena.address,
        )

    def read(self, given: Exposure, at: int, into: memoryview) -> None:
        check_read(given, at, into.nbytes, kind=KIND)
        self._check_seal(given)
        for start in range(0, into.nbytes, READ_BYTES):
            part = into[start : start + READ_BYTES]
            self._copy(given, given.at + SEAL_BYTES + at + start, part)
        self._check_seal(given)

    def withdraw(self, given: Exposure) -> None:
        with self._lock:
            arena = self._held.pop(given.key, None)
            if arena is not None:
                arena.unseal()
                self._free.append(arena)

    def close(self) -> None:
        with self._lock:
            held, self._held = self._held, {}
            for arena in held.values():
                arena.unseal()
                self._free.append(arena)

    def _room(self, num_bytes: int) -> _Arena:
        """The smallest free memory that is large enough, or new."""
        with self._lock:
            fits = [one for one in self._free if one.num_bytes >= num_bytes]
            if fits:
                found = min(fits, key=lambda one: one.num_bytes)
                self._free.remove(found)
                return found
        try:
            arena = _Arena(num_bytes)
        except (OSError, ValueError) as error:
            raise TransferError(f"no room for {num_bytes} bytes to expose: {error}") from error
        status = self._engine.register_memory(arena.address, num_bytes)
        if status != 0:
            raise TransferError(f"{num_bytes} bytes cannot be registered ({status})")
        return arena

    def _check_seal(self, given: Exposure) -> None:
        """What is exposed there at this moment is what was described."""
        found = bytearray(SEAL.size)
        self._copy(given, given.at, memoryview(found))
        if found != _seal(given.key, given.version, given.num_bytes):
            raise outdated(given)

    def _copy(self, given: Exposure, address: int, into: memoryview) -> None:
        arena = self._room(_size(SEAL_BYTES + into.nbytes))
        with self._lock:
            self._written.append(arena)
        target = arena.address + SEAL_BYTES
        status = self._engine.transfer_sync_read(given.peer, target, address, into.nbytes)
        if status != 0:
            self._engine.unregister_memory(arena.address)
            arena.abandon()
            message = f"{given.peer}: {into.nbytes} bytes cannot be read ({status})"
            raise TransferError(message)
        into[:] = arena.found(into.nbytes)
        with self._lock:
            self._written.remove(arena)
            self._free.append(arena)


def _size(num_bytes: int) -> int:
    if num_bytes >= STEP_BYTES:
        return -(-num_bytes // STEP_BYTES) * STEP_BYTES
    return max(mmap.PAGESIZE, 1 << (num_bytes - 1).bit_length())


def _seal(key: str, version: int, num_bytes: int) -> bytes:
    return SEAL.pack(MAGIC, bytes.fromhex(key), version, num_bytes)
