"""Whether a reply leaves only after its record is on disk, and how many calls share a sync.

The answer comes from the kernel: the peer runs under strace, and every write to a log or a client
and every fdatasync is read in the order it happened.
"""

import argparse
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import uvloop
from benchmarks.peers import results
from benchmarks.peers.contestants import CACHE, PEERS, Peer, Setting
from benchmarks.peers.measure import upstream
from benchmarks.peers.scenarios import Plan, Sample, many_short

TRACED = "fdatasync,fsync,syncfs,write,writev,pwrite64,pwritev,sendto,sendmsg"
LOG = re.compile(r"(?:write|writev|pwrite64|pwritev)\(\d+<[^>]*(?:\.calls|/journal)>")
REPLY = re.compile(r"(?:write|writev|sendto|sendmsg)\(\d+<[^>]*>, .*\"HTTP/1\.1 200")
SYNC = re.compile(r"(?:fdatasync|fsync|syncfs)\(\d+<([^>]*)>")
RESUMED = re.compile(r"<\.\.\. (?:fdatasync|fsync|syncfs) resumed>")
LINE = re.compile(r"(\d+) +[\d.]+ (.*)")


def read(lines: Iterable[str]) -> Sample:
    """Counts over a trace of one connection's calls, or of many.

    A log is clean when a sync that began after its last write has ended. With one call at a time
    any reply sent over an unclean log was sent too early.
    """
    writes, clean, syncs, replies, unsynced = 0, 0, 0, 0, 0
    began: dict[str, int] = {}
    for line in lines:
        found = LINE.match(line)
        if found is None:
            continue
        thread, text = found.groups()
        if LOG.match(text):
            writes += 1
        elif SYNC.match(text):
            syncs += 1
            began[thread] = writes
            if "unfinished" not in text:
                clean = max(clean, began.pop(thread))
        elif RESUMED.match(text):
            clean = max(clean, began.pop(thread, 0))
        elif REPLY.match(text):
            replies += 1
            unsynced += clean < writes
    return {"replies": replies, "syncs": syncs, "log_writes": writes, "unsynced": unsynced}


@contextmanager
def traced(pid: int, path: Path) -> Iterator[None]:
    """Writes the system calls of the process to the path meanwhile."""
    command = ["strace", "-f", "-y", "-ttt", "-s", "24", f"-e{TRACED}", "-o", str(path)]
    tracer = subprocess.Popen([*command, "-p", str(pid)], stderr=subprocess.DEVNULL)
    try:
        while not path.exists():
            time.sleep(0.05)
        time.sleep(0.5)
        yield
        time.sleep(0.5)
    finally:
        tracer.send_signal(signal.SIGINT)
        tracer.wait(30)


def one_run(peer: Peer, upstream_port: int, plan: Plan) -> Sample:
    with tempfile.TemporaryDirectory(dir=CACHE) as folder:
        setting = Setting(
            upstream=f"http://127.0.0.1:{upstream_port}",
            folder=Path(folder),
            num_routes=plan.connections,
        )
        trace = Path(folder) / "trace"
        with peer.start(setting) as started:
            uvloop.run(many_short(started, plan, plan.warm_calls, first=0))
            with traced(started.pid, trace):
                uvloop.run(many_short(started, plan, plan.calls, first=10**6))
        with trace.open() as lines:
            return read(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peers", default="parse-hash-journal,gyre")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--dry", action="store_true", help="print the samples, write no result")
    args = parser.parse_args()
    if shutil.which("strace") is None:
        raise SystemExit("syncs: expected strace on the path")
    peers = [PEERS[name] for name in args.peers.split(",")]
    alone = Plan(calls=200, warm_calls=20)
    together = Plan(calls=1_600, warm_calls=64, connections=32)
    load_before = os.getloadavg()[0]
    samples: dict[str, list[Sample]] = {peer.name: [] for peer in peers}
    for _ in range(args.runs):
        for peer in peers:
            with upstream("short", 1) as port:
                one = one_run(peer, port, alone)
                shared = one_run(peer, port, together)
            per_call = round(shared["syncs"] / shared["replies"], 4)
            # With many calls at once some log is always being written: no order to judge there.
            del shared["unsynced"]
            samples[peer.name].append(one | {"syncs_per_call": per_call, "together": shared})
            print(f"syncs {peer.name}: alone {one}, 32 at once {shared}", flush=True)
    if args.dry:
        return
    path = results.write(
        "syncs",
        samples=samples,
        settings={"runs": args.runs, "connections": together.connections},
        packages=results.versions({peer.name: (peer.python, peer.packages) for peer in peers}),
        load_average=(load_before, os.getloadavg()[0]),
    )
    print(path)


if __name__ == "__main__":
    main()
