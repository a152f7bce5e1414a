"""A socket that listens inside a network namespace that others live in; needs no other module.

    python -I -S netns.py NAMESPACE PORT SOCKET

Both numbers but the port are descriptors; the listening one goes back over SOCKET.
"""

import ctypes
import fcntl
import os
import socket
import sys
import threading

_NEWNET = 0x40000000
_NEWUSER = 0x10000000
_GET_USERNS = 0xB701
_FREEBIND = 15
BACKLOG = 128


def bound_by_thread(namespace: int, port: int) -> socket.socket:
    """Entered by one thread alone, which the kernel allows to root."""
    made: list[socket.socket] = []
    failed: list[OSError] = []

    def bind() -> None:
        try:
            _enter(namespace, _NEWNET)
            made.append(_listening(port))
        except OSError as error:
            failed.append(error)

    thread = threading.Thread(target=bind)
    thread.start()
    thread.join()
    if failed:
        raise failed[0]
    return made[0]


def bound_by_process(namespace: int, port: int) -> socket.socket:
    """Entered by this whole process, which has one thread, through the owner of the namespace."""
    owner = fcntl.ioctl(namespace, _GET_USERNS)
    _enter(owner, _NEWUSER)
    _enter(namespace, _NEWNET)
    return _listening(port)


def _enter(namespace: int, kind: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(namespace, kind) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"setns: {os.strerror(number)}")


def _listening(port: int) -> socket.socket:
    made = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    # The loopback device may not be up yet; its address is nobody else's anyway.
    made.setsockopt(socket.IPPROTO_IP, _FREEBIND, 1)
    made.bind(("127.0.0.1", port))
    made.listen(BACKLOG)
    return made


def _main(namespace: int, port: int, back: int) -> None:
    with socket.socket(fileno=back) as channel, bound_by_process(namespace, port) as made:
        socket.send_fds(channel, [b"+"], [made.fileno()])


if __name__ == "__main__":
    _main(*(int(argument) for argument in sys.argv[1:4]))
