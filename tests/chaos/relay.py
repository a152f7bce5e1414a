"""A relay of bytes that is slow, loses connections, or stops forwarding without closing them."""

import contextlib
import random
import select
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

RESET = struct.pack("ii", 1, 0)
"""SO_LINGER: what is closed is reset."""
LOOK_S = 0.1
"""A wait for a socket that another thread closes just before it begins is not woken by that."""


class Line:
    """What happens to bytes from now on, and what has happened; a thread for each way of each."""

    def __init__(self, target_port: int) -> None:
        self.delay_s = 0.0
        """Longest pause before a piece is passed on."""
        self.piece_bytes = 65536
        self.cuts: list[int] = []
        """Bytes of answers after which a connection is reset, one connection after the other."""
        self.is_stalled = False
        """Nothing is passed on, and nothing is closed."""
        self.num_cut = 0
        self.num_stalled = 0
        """Pieces that were on their way when they were held back."""
        self._target_port = target_port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._over = threading.Event()
        self._cutting = threading.Lock()
        self._moving: list[tuple[threading.Lock, socket.socket]] = []
        """What is held while a piece is between its source and its sink, and the source."""
        self._random = random.Random(7)
        self._go(self._accept)

    def close(self) -> None:
        self._over.set()
        _shut(self._listener)
        for one in self._sockets:
            _shut(one)
        for thread in self._threads:
            thread.join()

    def is_drained(self) -> bool:
        """Whether everything that was sent into the line has come out of it."""
        for moving, source in self._moving:
            with moving, contextlib.suppress(OSError, ValueError):
                if select.select([source], [], [], 0)[0]:
                    return False
        return True

    def _go(self, work, *arguments) -> None:
        thread = threading.Thread(target=work, args=arguments)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while not self._over.is_set():
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            self._sockets.append(near)
            try:
                far = socket.create_connection(("127.0.0.1", self._target_port))
            except OSError:
                _shut(near)
                continue
            self._sockets.append(far)
            self._go(self._pass, near, far, False)
            self._go(self._pass, far, near, True)

    def _pass(self, source: socket.socket, sink: socket.socket, is_answer: bool) -> None:
        passed = 0
        moving = threading.Lock()
        self._moving.append((moving, source))
        with contextlib.suppress(OSError, ValueError):
            while not self._over.is_set():
                if not select.select([source], [], [], LOOK_S)[0]:
                    continue
                with moving:
                    if not (data := source.recv(self.piece_bytes)):
                        break
                    if not self.is_stalled:
                        passed += len(data)
                        if not self._move(data, source, sink, passed if is_answer else 0):
                            return
                        continue
                self.num_stalled += 1
                self._over.wait()
                return
        _shut(sink)

    def _move(self, data: bytes, source: socket.socket, sink: socket.socket, answered: int) -> bool:
        """Passes a piece on; whether its connection is still there."""
        if self.delay_s:
            time.sleep(self._random.uniform(0, self.delay_s))
        if answered and self._is_cut(answered):
            self._reset(source, sink)
            return False
        sink.sendall(data)
        return True

    def _is_cut(self, passed: int) -> bool:
        with self._cutting:
            if not self.cuts or passed <= self.cuts[0]:
                return False
            del self.cuts[0]
            self.num_cut += 1
            return True

    @staticmethod
    def _reset(*sockets: socket.socket) -> None:
        for one in sockets:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            _shut(one)


def _shut(one: socket.socket) -> None:
    with contextlib.suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
    one.close()


@contextmanager
def relay(target_port: int) -> Iterator[Line]:
    """A line to a port of this machine."""
    line = Line(target_port)
    try:
        yield line
    finally:
        line.close()
