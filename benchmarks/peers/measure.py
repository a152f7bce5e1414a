"""Measures peers under one kind of load, in interleaved runs, and writes a result file."""

import argparse
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import uvloop
from benchmarks.peers import results
from benchmarks.peers.contestants import CACHE, OWN, PEERS, Peer, Setting
from benchmarks.peers.processes import free_port, running
from benchmarks.peers.scenarios import SCENARIOS, Plan, Sample
from benchmarks.peers.tokenizer import fetch

PLANS = {
    "short": Plan(calls=2_000, warm_calls=200, connections=16),
    "short-stream": Plan(calls=2_000, warm_calls=200, connections=16, stream=True),
    "long": Plan(calls=100, warm_calls=3, body_bytes=900_000),
    "latency": Plan(calls=500, warm_calls=100),
    "many": Plan(calls=2_048, warm_calls=512, connections=512, delay_s=1.0),
    "memory": Plan(calls=1_000, warm_calls=0),
}
SLOW_PEERS = ("litellm", "agent-lightning")
SLOW_SHARE = 5
"""Peers that cost tens of milliseconds a call get a fifth of the calls; more tells no more."""


def plan_of(name: str, peer: Peer) -> Plan:
    plan = PLANS[name]
    if peer.name in SLOW_PEERS and plan.connections < plan.calls // SLOW_SHARE:
        return replace(plan, calls=plan.calls // SLOW_SHARE)
    return plan


def one_run(name: str, peer: Peer, upstream_port: int) -> Sample:
    """One sample of one peer, in a fresh process with an empty folder."""
    plan = plan_of(name, peer)
    with tempfile.TemporaryDirectory(dir=CACHE) as folder:
        setting = Setting(
            upstream=f"http://127.0.0.1:{upstream_port}",
            folder=Path(folder),
            num_routes=plan.connections,
        )
        scenario = SCENARIOS[name.partition("-")[0]]
        with peer.start(setting) as started:
            return uvloop.run(scenario(peer, started, plan, upstream_port))


@contextmanager
def upstream(name: str, chunk_tokens: int) -> Iterator[int]:
    """Port of a mock engine that suits the load."""
    with upstream_process(name, chunk_tokens) as (_, port):
        yield port


@contextmanager
def upstream_process(name: str, chunk_tokens: int) -> Iterator[tuple[int, int]]:
    """The same with its process, for whoever asks what that takes."""
    port = free_port()
    command = [str(OWN), "-m", "benchmarks.peers.upstream", f"--port={port}"]
    command += [f"--tokenizer={fetch(CACHE / 'tokenizer')}", f"--chunk-tokens={chunk_tokens}"]
    command += [f"--delay-s={PLANS[name].delay_s}"]
    if name in ("long", "memory"):
        command.append("--tools")
    log = CACHE / "upstream.log"
    with running(command, port=port, probe="/health", environment={}, log=log) as pid:
        yield pid, port


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=PLANS)
    parser.add_argument("--peers", default=",".join(PEERS), help="names, with commas between")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--chunk-tokens", type=int, default=1, help="tokens per event of a chat")
    parser.add_argument("--dry", action="store_true", help="print the samples, write no result")
    args = parser.parse_args()
    peers = [PEERS[name] for name in args.peers.split(",")]
    packages = results.versions({peer.name: (peer.python, peer.packages) for peer in peers})
    load_before = os.getloadavg()[0]
    samples: dict[str, list[Sample]] = {peer.name: [] for peer in peers}
    for run in range(args.runs):
        # Interleaved and rotated, so that a drift of the machine falls on every peer alike.
        for peer in peers[run % len(peers) :] + peers[: run % len(peers)]:
            with upstream(args.name, args.chunk_tokens) as port:
                sample = one_run(args.name, peer, port)
            samples[peer.name].append(sample)
            print(f"{args.name} run {run + 1} {peer.name}: {_brief(sample)}", flush=True)
    if args.dry:
        return
    settings = {"runs": args.runs, "chunk_tokens": args.chunk_tokens}
    plans = {peer.name: asdict(plan_of(args.name, peer)) for peer in peers}
    path = results.write(
        args.name,
        samples=samples,
        settings=settings | {"plans": plans},
        packages=packages,
        load_average=(load_before, os.getloadavg()[0]),
    )
    print(path)


def _brief(sample: dict[str, Any]) -> str:
    if "cpu_s" in sample:
        per_call_ms = 1000 * sample["cpu_s"] / sample["calls"]
        rate = sample["calls"] / sample["wall_s"]
        return f"{per_call_ms:.3f} CPU ms a call, {rate:.0f} calls/s, {sample['failed']} failed"
    if "through_s" in sample:
        added = sample["through_s"]["p50"] - sample["direct_s"]["p50"]
        return f"{1000 * added:.3f} ms added at the median"
    first, last = sample["points"][0], sample["points"][-1]
    return f"{(last['rss_bytes'] - first['rss_bytes']) / 2**20:.1f} MiB grown"


if __name__ == "__main__":
    main()
