"""How fast weights get from one process to another of this machine, by each transport.

Every way moves the same bytes out of another process; a plain socket, which checks nothing, is the
floor. A read is that of a satellite: the sheet first, then all blocks, each checked by its hash.
"""

import argparse
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import numpy as np
from benchmarks.peers import results

from gyre.config.sections import TransportConfig
from gyre.transports.registry import open_transport
from gyre.transports.tensor_layout import TensorSlice
from gyre.transports.tensor_transfer import TensorBytes, expose, fetch
from gyre.types.protocols import TensorBundle, Transport

HOST = "127.0.0.1"
SOCKET = "socket"
KINDS = ("shared", "tcp", "mooncake")
PACKAGES = ["mooncake-transfer-engine-non-cuda", "numpy", "xxhash"]
TENSORS = 32


def opened(kind: str, owner: str, share: str) -> Transport:
    section = TransportConfig(kind=kind)  # type: ignore[arg-type]
    return open_transport(section, owner=owner, host=HOST, share=Path(share))


def tensors(num_bytes: int) -> dict[str, TensorBytes]:
    rng = np.random.default_rng(7)
    size = num_bytes // TENSORS
    return {
        f"layer.{at}": TensorBytes(
            dtype="uint8",
            cut=TensorSlice.all_of((size,)),
            data=rng.integers(0, 256, size, np.uint8),
        )
        for at in range(TENSORS)
    }


def be_peer(kind: str, share: str, num_bytes: int) -> None:
    """Says where to read, and holds it until its input ends."""
    given = tensors(num_bytes)
    if kind == SOCKET:
        data = b"".join(one.data.data for one in given.values())
        with socket.create_server((HOST, 0)) as listening:
            print(listening.getsockname()[1], flush=True)
            while True:
                line, _ = listening.accept()
                with line:
                    line.sendall(data)
    transport = opened(kind, "peer", share)
    began = time.perf_counter()
    bundle = expose(transport, given, version=1)
    print(time.perf_counter() - began, msgspec.json.encode(bundle).decode(), flush=True)
    sys.stdin.read()
    transport.close()


@contextmanager
def peer(kind: str, share: str, num_bytes: int) -> Iterator[str]:
    """What it said."""
    command = [sys.executable, "-m", "benchmarks.micro.transports", "--peer", kind]
    command += ["--share", share, "--bytes", str(num_bytes)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline()
        finally:
            process.kill()


def received(port: int, num_bytes: int) -> float:
    into = memoryview(bytearray(num_bytes))
    began = time.perf_counter()
    with socket.create_connection((HOST, port)) as line:
        done = 0
        while done < num_bytes:
            count = line.recv_into(into[done:])
            if count == 0:
                raise ConnectionError(f"hung up after {done} of {num_bytes} bytes")
            done += count
    return time.perf_counter() - began


def sample(kind: str, share: str, num_bytes: int) -> dict[str, float]:
    """One read by a process that has read before, so that ways are open and memory is warm."""
    with peer(kind, share, num_bytes) as said:
        if kind == SOCKET:
            times = [received(int(said), num_bytes) for _ in range(2)]
            return {"bytes": num_bytes, "seconds": times[-1]}
        exposed_s, _, text = said.partition(" ")
        bundle = msgspec.json.decode(text, type=TensorBundle)
        wanted = {
            f"layer.{at}": (f"layer.{at}", TensorSlice.all_of((num_bytes // TENSORS,)))
            for at in range(TENSORS)
        }
        reader = opened(kind, "reader", share)
        for _ in range(2):
            began = time.perf_counter()
            fetch(reader, [bundle], wanted)
            seconds = time.perf_counter() - began
        reader.close()
    return {"bytes": num_bytes, "seconds": seconds, "exposed_s": float(exposed_s)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--bytes", type=int, default=2**28)
    parser.add_argument("--kinds", default=",".join((SOCKET, *KINDS)))
    parser.add_argument("--peer", help="be the other process of this kind")
    parser.add_argument("--share", default="/dev/shm")
    parser.add_argument("--dry", action="store_true", help="print the samples, write no result")
    args = parser.parse_args()
    if args.peer is not None:
        be_peer(args.peer, args.share, args.bytes)
        return
    load_before = os.getloadavg()[0]
    kinds = args.kinds.split(",")
    samples: dict[str, list[dict[str, float]]] = {kind: [] for kind in kinds}
    with tempfile.TemporaryDirectory(dir=args.share) as share:
        for _ in range(args.runs):
            for kind in kinds:
                samples[kind].append(sample(kind, share, args.bytes))
    if args.dry:
        print(samples)
        return
    path = results.write(
        "transports",
        samples=samples,
        settings={"runs": args.runs, "tensors": TENSORS, "host": HOST},
        packages=results.versions({"gyre": (Path(sys.executable), PACKAGES)}),
        load_average=(load_before, os.getloadavg()[0]),
    )
    print(path)


if __name__ == "__main__":
    main()
