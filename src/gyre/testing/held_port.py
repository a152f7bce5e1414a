"""A port that stays with its holder also while no process listens on it."""

import socket

HOST = "127.0.0.1"


def held_port() -> socket.socket:
    """Bound and not listening: whoever connects is refused, and nobody else is given the port.

    A server that may reuse addresses listens on it nevertheless, and its successor after it.
    """
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind((HOST, 0))
    return held


def number_of(held: socket.socket) -> int:
    port: int = held.getsockname()[1]
    return port
