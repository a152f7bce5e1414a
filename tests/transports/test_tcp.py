"""Sockets between cells: peers that hang up, fall silent or ask for what is not theirs."""

import socket
import threading
from contextlib import contextmanager

import pytest
from tests.waiting import PATIENCE_S

from gyre.transports.tcp import NOT_HELD, OK, REQUEST, TcpTransport
from gyre.types.errors import ExposureGone, TransferError
from gyre.types.protocols import Exposure

HOST = "127.0.0.1"
KEY = "ab" * 16


@pytest.fixture
def transport():
    found = TcpTransport(HOST, timeout_s=PATIENCE_S)
    yield found
    found.close()


def told(port, num_bytes=100):
    return Exposure(kind="tcp", peer=f"{HOST}:{port}", key=KEY, version=1, num_bytes=num_bytes)


@contextmanager
def answering(*answers):
    """The port of a peer that sends each reader the next of these, and then hangs up."""
    with socket.create_server((HOST, 0)) as listening:

        def answer():
            for one in answers:
                line, _ = listening.accept()
                with line:
                    line.recv(REQUEST.size, socket.MSG_WAITALL)
                    line.sendall(one)

        thread = threading.Thread(target=answer)
        thread.start()
        yield listening.getsockname()[1]
        thread.join()


@pytest.mark.parametrize(
    ("answer", "found"),
    [(b"", "hung up after 0 of 1"), (OK, "after 0 of 100"), (OK + b"x" * 40, "after 40 of 100")],
)
def test_a_read_that_is_cut_short_is_an_error(transport, answer, found):
    with answering(answer) as port, pytest.raises(TransferError, match=found):
        transport.read(told(port), 0, memoryview(bytearray(100)))


@pytest.mark.parametrize("answer", [NOT_HELD, b"H"])
def test_a_peer_that_says_anything_but_yes_does_not_hold_it(transport, answer):
    with answering(answer + b"x" * 100) as port, pytest.raises(ExposureGone):
        transport.read(told(port), 0, memoryview(bytearray(100)))


def test_a_peer_that_falls_silent_is_given_up():
    transport = TcpTransport(HOST, timeout_s=0.2)
    with (
        socket.create_server((HOST, 0)) as silent,
        pytest.raises(TransferError, match="timed out"),
    ):
        transport.read(told(silent.getsockname()[1]), 0, memoryview(bytearray(1)))
    transport.close()


def test_nobody_at_all_is_an_error(transport):
    with socket.socket() as held:
        held.bind((HOST, 0))
        port = held.getsockname()[1]
        with pytest.raises(TransferError, match="refused"):
            transport.read(told(port), 0, memoryview(bytearray(1)))


def asked(given, request):
    """All that the owner answers to these bytes."""
    host, _, port = given.peer.rpartition(":")
    with socket.create_connection((host, int(port)), PATIENCE_S) as line:
        line.sendall(request)
        line.shutdown(socket.SHUT_WR)
        found = b""
        while piece := line.recv(2**16):
            found += piece
        return found


def test_whoever_has_no_key_learns_nothing(transport):
    given = transport.expose([memoryview(b"0123456789")], version=1)
    key = bytes.fromhex(given.key)

    assert OK + b"234" == asked(given, REQUEST.pack(key, 2, 3))
    for request in (
        REQUEST.pack(bytes(16), 0, 1),
        REQUEST.pack(key, 0, 11),
        REQUEST.pack(key, 10, 1),
        REQUEST.pack(key, 2**64 - 1, 2**64 - 1),
        b"GET / HTTP/1.1\r\nHost: somewhere\r\n"[: REQUEST.size],
    ):
        assert NOT_HELD == asked(given, request)
    for request in (b"", key):
        assert b"" == asked(given, request)
    assert OK + b"9" == asked(given, REQUEST.pack(key, 9, 1))


def test_a_reader_in_the_middle_gets_all_of_what_it_began_with(transport):
    """What is withdrawn meanwhile stays in memory for it."""
    data = bytes(range(256)) * 100_000
    given = transport.expose([memoryview(data)], version=1)
    host, _, port = given.peer.rpartition(":")
    with socket.create_connection((host, int(port)), PATIENCE_S) as line:
        line.sendall(REQUEST.pack(bytes.fromhex(given.key), 0, len(data)))
        assert OK == line.recv(1)
        transport.withdraw(given)
        found = b"".join(iter(lambda: line.recv(2**20), b""))

    assert data == found


def test_a_transport_that_is_closed_exposes_nothing(transport):
    transport.close()

    with pytest.raises(TransferError, match="closed"):
        transport.expose([memoryview(b"x")], version=1)


class SlowLine:
    """A connection whose reader takes some of it just before each time-out; its time is made up."""

    def __init__(self, request):
        self._request, self.taken, self.now, self._timeout_s = request, 0, 0.0, None

    def settimeout(self, seconds):
        self._timeout_s = seconds

    def recv_into(self, into):
        into[:] = self._request
        return len(into)

    def send(self, data):
        self.now += 0.9 * self._timeout_s
        count = min(len(data), 2**20)
        self.taken += count
        return count

    def sendall(self, data):
        """One time-out for all of it, as a socket has."""
        end = self.now + self._timeout_s
        while data:
            data = data[self.send(data) :]
            if self.now >= end:
                raise TimeoutError("timed out")


def test_a_reader_that_is_slow_and_never_silent_gets_all_of_it(transport):
    """The time-out is of silence, not of the whole answer."""
    data = bytes(32 * 2**20)
    given = transport.expose([memoryview(data)], version=1)
    line = SlowLine(REQUEST.pack(bytes.fromhex(given.key), 0, len(data)))
    transport.answer(line)

    assert len(OK) + len(data) == line.taken
    assert line.now > 10 * PATIENCE_S


def test_closing_hangs_up_on_readers_in_the_middle(transport):
    given = transport.expose([memoryview(bytes(32 * 2**20))], version=1)
    host, _, port = given.peer.rpartition(":")
    with socket.create_connection((host, int(port)), PATIENCE_S) as line:
        line.sendall(REQUEST.pack(bytes.fromhex(given.key), 0, 32 * 2**20))
        assert OK == line.recv(1)
        transport.close()
        found = b"".join(iter(lambda: line.recv(2**20), b""))

    assert len(found) < 32 * 2**20


def test_a_reader_for_whom_no_thread_is_left_does_not_end_the_others(transport, monkeypatch):
    given = transport.expose([memoryview(b"0123456789")], version=1)
    start = threading.Thread.start
    refused = []

    def start_one(thread):
        if thread.name == "reader" and not refused:
            refused.append(thread)
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_one)
    into = bytearray(10)
    with pytest.raises(TransferError):
        transport.read(given, 0, memoryview(into))
    transport.read(given, 0, memoryview(into))

    assert (1, b"0123456789") == (len(refused), into)


@pytest.mark.parametrize(
    "peer",
    ["nobody", ":80", "host:0", "host:99999", f"host:{'9' * 5000}", f"{'h' * 64}:80", "\0:80"],
)
def test_an_address_that_cannot_be_is_an_error(transport, peer):
    given = Exposure(kind="tcp", peer=peer, key=KEY, version=1, num_bytes=1)

    with pytest.raises(TransferError):
        transport.read(given, 0, memoryview(bytearray(1)))
