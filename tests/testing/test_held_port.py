"""A port that is held: nobody is there, nobody else gets it, and servers come and go on it."""

import socket

import pytest

from gyre.testing.processes import HOST, held_port, number_of


def test_whoever_connects_is_refused_and_nobody_else_can_have_it():
    with held_port() as held, socket.socket() as other:
        port = number_of(held)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((HOST, port))
        with pytest.raises(OSError, match="in use"):
            other.bind((HOST, port))


def test_one_server_after_another_listens_on_it():
    with held_port() as held:
        for _ in range(2):
            with (
                socket.create_server((HOST, number_of(held))) as server,
                socket.create_connection(server.getsockname()) as client,
            ):
                met, _ = server.accept()
                with met:
                    assert client.getsockname() == met.getpeername()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((HOST, number_of(held)))
