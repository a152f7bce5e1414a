"""Sockets without anything else: one request for each read, answered from the owner's memory.

A request is the key, where to begin and how many bytes; the answer is one byte, OK or not, and
then the bytes. A reader without the key of an exposure learns nothing.
"""

import socket
import struct
import threading
from collections.abc import Sequence
from contextlib import suppress

from gyre.transports.tensor_transfer import check_read, new_key, outdated, refused
from gyre.types.errors import TransferError
from gyre.types.protocols import Exposure

KIND = "tcp"
REQUEST = struct.Struct("!16sQQ")
OK, NOT_HELD = b"\x01", b"\x00"
MOST_READERS = 64
"""Who is answered at once; others wait to be accepted."""
BACKLOG = 128
PAUSE_S = 0.1
REQUEST_S = 10.0
"""A reader that takes longer to say what it wants is hung up on."""


class TcpTransport:
    """A transport over sockets: one that listens, and a thread for each reader."""

    def __init__(self, host: str, *, timeout_s: float) -> None:
        """Others reach this process by that address."""
        self._timeout_s = timeout_s
        self._held: dict[bytes, memoryview] = {}
        self._lock = threading.Lock()
        self._places = threading.Semaphore(MOST_READERS)
        self._closed = threading.Event()
        self._readers: dict[threading.Thread, socket.socket] = {}
        self._listening = socket.create_server((host, 0), backlog=BACKLOG)
        self._peer = f"{host}:{self._listening.getsockname()[1]}"
        self._accepting = threading.Thread(target=self._accept, name="transport", daemon=True)
        self._accepting.start()

    def expose(self, parts: Sequence[memoryview], *, version: int) -> Exposure:
        try:
            data = bytearray(sum(one.nbytes for one in parts))
        except MemoryError as error:
            raise TransferError("no room for a copy of what is exposed") from error
        at = 0
        for one in parts:
            data[at : at + one.nbytes] = one
            at += one.nbytes
        key = new_key()
        with self._lock:
            if self._closed.is_set():
                raise TransferError(f"{self._peer}: closed", retryable=False)
            self._held[bytes.fromhex(key)] = memoryview(data).toreadonly()
        return Exposure(kind=KIND, peer=self._peer, key=key, version=version, num_bytes=len(data))

    def read(self, given: Exposure, at: int, into: memoryview) -> None:
        check_read(given, at, into.nbytes, kind=KIND)
        address = _address(given)
        try:
            with socket.create_connection(address, self._timeout_s) as line:
                line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                line.sendall(REQUEST.pack(bytes.fromhex(given.key), at, into.nbytes))
                answer = bytearray(1)
                _receive(line, memoryview(answer))
                if answer != OK:
                    raise outdated(given)
                _receive(line, into)
        except (
            OSError,
            ValueError,
        ) as error:  # Some names of hosts are none that can be asked for.
            raise TransferError(f"{given.peer}: cannot be read: {error}") from error

    def withdraw(self, given: Exposure) -> None:
        with self._lock, suppress(ValueError):
            self._held.pop(bytes.fromhex(given.key), None)

    def close(self) -> None:
        """Readers are hung up on, and no thread is left."""
        with self._lock:
            if self._closed.is_set():
                return
            self._closed.set()
            self._held.clear()
        # Which wakes the thread that accepts, or waits for a place.
        with suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._places.release()
        self._accepting.join()
        self._listening.close()
        with self._lock:
            readers = list(self._readers)
            for line in self._readers.values():
                with suppress(OSError):
                    line.shutdown(socket.SHUT_RDWR)
        for reader in readers:
            reader.join()

    def _accept(self) -> None:
        while True:
            self._places.acquire()
            try:
                line, _ = self._listening.accept()
            except OSError:
                # Else the process has no descriptor left for it; some are given back in time.
                self._places.release()
                if self._closed.wait(PAUSE_S):
                    return
                continue
            reader = threading.Thread(target=self._serve, args=[line], name="reader", daemon=True)
            with self._lock:
                self._readers[reader] = line
            try:
                reader.start()
            except RuntimeError:
                # Nor is a thread left, now; this reader is hung up on, and others are answered.
                self._hang_up(reader)

    def _hang_up(self, reader: threading.Thread) -> None:
        with self._lock:
            self._readers.pop(reader).close()
        self._places.release()

    def _serve(self, line: socket.socket) -> None:
        try:
            # A reader that went away, or says something else, is no concern of its peer.
            with suppress(OSError):
                self.answer(line)
        finally:
            self._hang_up(threading.current_thread())

    def answer(self, line: socket.socket) -> None:
        """One request; raises OSError when the reader is gone or silent."""
        line.settimeout(REQUEST_S)
        request = bytearray(REQUEST.size)
        _receive(line, memoryview(request))
        line.settimeout(self._timeout_s)
        found = self._wanted(*REQUEST.unpack(request))
        line.sendall(NOT_HELD if found is None else OK)
        if found is not None:
            _send(line, found)

    def _wanted(self, key: bytes, at: int, num_bytes: int) -> memoryview | None:
        """Memory that stays as it is for as long as a thread sends it."""
        with self._lock:
            held = self._held.get(key)
        if held is None or at + num_bytes > held.nbytes:
            return None
        return held[at : at + num_bytes]


def _address(given: Exposure) -> tuple[str, int]:
    host, _, port = given.peer.rpartition(":")
    if not (host and port.isascii() and port.isdigit() and len(port) < 6 and 0 < int(port) < 2**16):
        raise refused(given, "expected HOST:PORT")
    return host, int(port)


def _send(line: socket.socket, data: memoryview) -> None:
    """Piece by piece, because `sendall` has one time-out for all of it, however fast it goes."""
    done = 0
    while done < data.nbytes:
        done += line.send(data[done:])


def _receive(line: socket.socket, into: memoryview) -> None:
    done = 0
    while done < into.nbytes:
        count = line.recv_into(into[done:])
        if count == 0:
            raise ConnectionError(f"hung up after {done} of {into.nbytes} bytes")
        done += count
