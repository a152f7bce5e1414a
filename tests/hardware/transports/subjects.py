"""Transports of each kind for the contract, in this process and in another."""

import json
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import msgspec

from gyre.config.sections import TransportConfig
from gyre.transports.registry import open_transport
from gyre.types.protocols import Exposure

HOST = "127.0.0.1"
TIMEOUT_S = 1800.0
"""Longer than anything here takes on any machine, so that none ends by it."""


def opened(kind, owner, share):
    section = TransportConfig(kind=kind, timeout_s=TIMEOUT_S)
    return open_transport(section, owner=owner, host=HOST, share=Path(share))


class Subject:
    """A kind of transport, and the folder that its processes share."""

    def __init__(self, kind, share):
        self.kind = kind
        self.share = share
        self.outlives = kind == "shared"

    @contextmanager
    def open(self, owner):
        transport = opened(self.kind, owner, self.share)
        try:
            yield transport
        finally:
            transport.close()

    @contextmanager
    def elsewhere(self, data, version):
        peer = Peer(self.kind, self.share)
        try:
            peer.exposure = peer.replace(data, version)
            yield peer
        finally:
            peer.kill()


class Peer:
    """A process that exposes what it is told to."""

    def __init__(self, kind, share):
        self.path = Path(share) / "told"
        self.process = subprocess.Popen(
            [sys.executable, __file__, kind, str(share)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def replace(self, data, version):
        self.path.write_bytes(data)
        return self.told(version=version, path=str(self.path))

    def told(self, **order):
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        assert line, "the peer is gone"
        return msgspec.json.decode(line, type=Exposure)

    def kill(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()


def main(kind, share):
    transport = opened(kind, "peer", share)
    held = None
    for line in sys.stdin:
        order = json.loads(line)
        if held is not None:
            transport.withdraw(held)
        data = Path(order["path"]).read_bytes()
        held = transport.expose([memoryview(data)], version=order["version"])
        print(msgspec.json.encode(held).decode(), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
