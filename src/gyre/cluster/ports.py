"""Who listens on a port of this machine, read from /proc."""

from contextlib import suppress
from pathlib import Path

LISTENS = "0A"
"""A socket's state in the kernel's tables."""


def holder_of_port(port: int, proc: Path = Path("/proc")) -> str | None:
    """Its process and what that is, as people know it; None where this process cannot tell."""
    sockets = {f"socket:[{one}]" for one in _listening(port, proc)}
    if not sockets:
        return None
    for folder in proc.iterdir():
        if not folder.name.isdecimal():
            continue
        # Others' processes may not be looked at, and any may end meanwhile.
        with suppress(OSError):
            if any(str(one.readlink()) in sockets for one in (folder / "fd").iterdir()):
                words = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")
                return f"process {folder.name} ({' '.join(words).strip()[:100]})"
    return None


def _listening(port: int, proc: Path) -> list[str]:
    """Inodes of the sockets."""
    found = []
    for table in ("tcp", "tcp6"):
        with suppress(OSError):
            for line in (proc / "net" / table).read_text().splitlines()[1:]:
                words = line.split()
                place, state, inode = words[1], words[3], words[9]
                if state == LISTENS and int(place.rpartition(":")[2], 16) == port:
                    found.append(inode)
    return found
