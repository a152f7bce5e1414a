"""A listening socket inside the network namespace of a process, held by this one."""

import os
import socket
import subprocess
import sys
from pathlib import Path

from gyre.sandboxes.local import netns_script as netns
from gyre.types.errors import SandboxError

ENTER_S = 10.0
"""How long a process may take to enter a namespace and come back with a socket."""


def listen_inside(pid: int, port: int) -> socket.socket:
    """Bound to the loopback of that process's network namespace; SandboxError if it cannot be."""
    try:
        namespace = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        message = f"network of process {pid}: {error}"
        raise SandboxError(message) from error
    try:
        return netns.bound_by_thread(namespace, port)
    except PermissionError:
        return _bound_by_child(namespace, port)
    except OSError as error:
        message = f"listening in the network of process {pid}: {error}"
        raise SandboxError(message) from error
    finally:
        os.close(namespace)


def _bound_by_child(namespace: int, port: int) -> socket.socket:
    """Who is not root enters with a whole process, because a user namespace asks for that."""
    here, there = socket.socketpair()
    with here, there:
        numbers = [str(number) for number in (namespace, port, there.fileno())]
        done = subprocess.run(
            [sys.executable, "-I", "-S", str(Path(netns.__file__)), *numbers],
            pass_fds=(namespace, there.fileno()),
            env={},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=ENTER_S,
            check=False,
        )
        there.close()
        _, received, _, _ = socket.recv_fds(here, 1, 1)
    if not received:
        said = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        message = f"listening inside a sandbox: expected a socket, found: {said}"
        raise SandboxError(message)
    return socket.socket(fileno=received[0])
