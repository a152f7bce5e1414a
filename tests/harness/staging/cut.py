"""A process without a network: nothing but its own loopback, in a namespace of its own."""

import fcntl
import os
import socket
import struct
from pathlib import Path

_SET_FLAGS = 0x8914  # SIOCSIFFLAGS
_UP = 0x1  # IFF_UP


def unshared() -> list[str]:
    """What to put before a command so that it starts without a network."""
    # Root needs no user namespace, and some machines allow none.
    return ["unshare", "-n"] if os.geteuid() == 0 else ["unshare", "-rn"]


def raise_loopback() -> None:
    """127.0.0.1 works in this process's namespace."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, _SET_FLAGS, struct.pack("16sh", b"lo", _UP))


def interfaces() -> list[str]:
    """Network devices this process has."""
    return sorted(name for _, name in socket.if_nameindex())


def routes() -> list[str]:
    """Ways out: lines of the kernel's IPv4 route table, and IPv6 ones not on the loopback."""
    found = Path("/proc/net/route").read_text().splitlines()[1:]
    six = Path("/proc/net/ipv6_route")
    if six.exists():
        found += [line for line in six.read_text().splitlines() if line.split()[-1] != "lo"]
    return found
