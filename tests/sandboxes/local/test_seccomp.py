"""The filter as the kernel reads it, also for machines and calls that this one does not have."""

import errno
import platform
import socket
import struct

import pytest

from gyre.sandboxes.local import seccomp

X86_64, I386, AARCH64, ARM = 0xC000003E, 0x40000003, 0xC00000B7, 0x40000028
ALLOWED = 0x7FFF0000
OTHER_NUMBERS = 0x40000000
VSOCK, PACKET, ALG = 40, 17, 38
OWN = (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK)


def verdict(machine, monkeypatch, architecture, number, *arguments):
    """ALLOWED, or the error that the call fails with."""
    monkeypatch.setattr(platform, "machine", lambda: machine)
    data = struct.pack("=iIQ6Q", number, architecture, 0, *arguments, *[0] * (6 - len(arguments)))
    lines = list(struct.iter_unpack("=HBBI", seccomp.program.__wrapped__()))
    at, held = 0, 0
    while True:
        code, yes, no, value = lines[at]
        at += 1
        match code:
            case 0x20:
                held = struct.unpack_from("=I", data, value)[0]
            case 0x15:
                at += yes if held == value else no
            case 0x35:
                at += yes if held >= value else no
            case 0x06:
                return value if value == ALLOWED else value & 0xFFFF


@pytest.mark.parametrize(
    ("machine", "architecture", "numbers"),
    [("x86_64", X86_64, (41, 53)), ("aarch64", AARCH64, (198, 199))],
)
def test_sockets_are_of_four_families(machine, architecture, numbers, monkeypatch):
    for number in numbers:
        found = {
            family
            for family in range(256)
            if ALLOWED == verdict(machine, monkeypatch, architecture, number, family)
        }
        refused = verdict(machine, monkeypatch, architecture, number, VSOCK | 1 << 32)

        assert (set(OWN), errno.EAFNOSUPPORT) == (found, refused)


@pytest.mark.parametrize(
    ("machine", "architecture", "number", "arguments"),
    [
        ("x86_64", I386, 102, (1,)),
        ("x86_64", I386, 359, (VSOCK,)),
        ("x86_64", I386, 26, (16, 1)),
        ("x86_64", X86_64, OTHER_NUMBERS | 41, (VSOCK,)),
        ("x86_64", X86_64, OTHER_NUMBERS | 521, (16, 1)),
        ("aarch64", ARM, 281, (VSOCK,)),
        ("x86_64", X86_64, 101, (16, 1)),
        ("x86_64", X86_64, 101, (0x4206, 1 | 1 << 32)),
        ("x86_64", X86_64, 311, (1,)),
        ("aarch64", AARCH64, 117, (0x4206, 1)),
        ("aarch64", AARCH64, 270, (1,)),
    ],
)
def test_no_other_way_of_calling_gets_past_it(
    machine, architecture, number, arguments, monkeypatch
):
    assert errno.EPERM == verdict(machine, monkeypatch, architecture, number, *arguments)


@pytest.mark.parametrize(
    ("machine", "architecture", "number", "arguments"),
    [
        ("x86_64", X86_64, 101, (16, 2)),
        ("x86_64", X86_64, 101, (0, 0)),
        ("x86_64", X86_64, 310, (11,)),
        ("x86_64", X86_64, 0, (PACKET, ALG)),
        ("aarch64", AARCH64, 117, (16, 2)),
        ("aarch64", AARCH64, 63, (1,)),
    ],
)
def test_other_calls_are_let_through(machine, architecture, number, arguments, monkeypatch):
    assert ALLOWED == verdict(machine, monkeypatch, architecture, number, *arguments)
