"""Who has a port is told by name, where the kernel tells."""

import os
import socket

from gyre.cluster.process import holder_of_port


def test_whoever_listens_is_found_and_nobody_else():
    with socket.socket() as bound, socket.socket() as listening:
        for one in (bound, listening):
            one.bind(("127.0.0.1", 0))
        listening.listen()
        found = holder_of_port(listening.getsockname()[1])
        other = holder_of_port(bound.getsockname()[1])

    assert found is not None
    assert found.startswith(f"process {os.getpid()} (")
    assert other is None


def test_tables_that_are_not_there_tell_of_nobody(tmp_path):
    assert holder_of_port(80, proc=tmp_path) is None
