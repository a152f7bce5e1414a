"""System calls that no program of a sandbox may make, as a filter for the kernel."""

import platform
import struct
from functools import cache

_LOAD, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
_ALLOW = 0x7FFF0000
_REFUSE = 0x00050000 | 1
"""With EPERM, as if a right were missing."""
_MISSING = 0x00050000 | 38
"""With ENOSYS, so that programs fall back on what they used before."""
_OTHER_NUMBERS = 0x40000000
"""From here on x86-64 counts the calls of its 32-bit variant."""
_MACHINES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}
"""How the filter knows the machine, and which number of each pair below is its own."""

REFUSED = {
    # Rings of keys belong to a user, and so to all sandboxes at once.
    "add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219),
    # Into the kernel.
    "init_module": (175, 105), "finit_module": (313, 273), "delete_module": (176, 106),
    "kexec_load": (246, 104), "kexec_file_load": (320, 294), "bpf": (321, 280),
    "perf_event_open": (298, 241), "userfaultfd": (323, 282), "syslog": (103, 116),
    # What is where.
    "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "open_tree": (428, 428),
    "move_mount": (429, 429), "fsopen": (430, 430), "fsconfig": (431, 431), "fsmount": (432, 432),
    "fspick": (433, 433), "mount_setattr": (442, 442), "open_by_handle_at": (304, 265),
    # The machine's own business.
    "reboot": (169, 142), "swapon": (167, 224), "swapoff": (168, 225), "acct": (163, 89),
    "quotactl": (179, 60), "settimeofday": (164, 170), "clock_settime": (227, 112),
}  # fmt: skip
MISSING = {"io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427}
"""They do what a filter never sees."""


@cache
def program() -> bytes | None:
    """For this machine; None where its numbers are not known."""
    machine = platform.machine()
    if machine not in _MACHINES:
        return None
    name, which = _MACHINES[machine]
    lines = [_line(_LOAD, 4), _line(_EQUAL, name, yes=1), _line(_RETURN, _REFUSE), _line(_LOAD, 0)]
    if machine == "x86_64":
        lines += [_line(_AT_LEAST, _OTHER_NUMBERS, no=1), _line(_RETURN, _REFUSE)]
    for numbers in REFUSED.values():
        lines += [_line(_EQUAL, numbers[which], no=1), _line(_RETURN, _REFUSE)]
    for number in MISSING.values():
        lines += [_line(_EQUAL, number, no=1), _line(_RETURN, _MISSING)]
    return b"".join([*lines, _line(_RETURN, _ALLOW)])


def _line(code: int, value: int, *, yes: int = 0, no: int = 0) -> bytes:
    return struct.pack("=HBBI", code, yes, no, value)
