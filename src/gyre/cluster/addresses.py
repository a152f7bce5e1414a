"""Which network interface of this machine has an address."""

import fcntl
import socket
import struct

from gyre.types.errors import ConfigError

SIOCGIFADDR = 0x8915
"""Asks the kernel for an interface's address."""
LOOPBACK = "lo"
"""Has all addresses that begin with 127."""


def interface_of(host: str) -> str:
    """Its name; ConfigError if none has this address."""
    if host.startswith("127."):
        return LOOPBACK
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(asked, SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
            except OSError:
                continue  # One that has no address.
            if socket.inet_ntoa(answer[20:24]) == host:
                return name
    raise ConfigError(f"no network interface of this machine has the address {host}")
