"""A relay of bytes that is slow, loses connections, or stops forwarding without closing them."""

import contextlib
import random
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

RESET = struct.pack("ii", 1, 0)
"""SO_LINGER: what is closed is reset."""


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
        self._random = random.Random(7)
        self._go(self._accept)

    def close(self) -> None:
        self._over.set()
        _shut(self._listener)
        for one in self._sockets:
            _shut(one)
        for thread in self._threads:
            thread.join()

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
        with contextlib.suppress(OSError):
            while data := source.recv(self.piece_bytes):
                if self.is_stalled:
                    self.num_stalled += 1
                    self._over.wait()
                    return
                if self.delay_s:
                    time.sleep(self._random.uniform(0, self.delay_s))
                passed += len(data)
                if is_answer and self._is_cut(passed):
                    self._reset(source, sink)
                    return
                sink.sendall(data)
        _shut(sink)

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
