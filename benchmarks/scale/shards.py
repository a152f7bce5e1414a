"""Short calls through a proxy of one process and of two, with the CPU of everybody involved."""

import argparse
import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import uvloop
from benchmarks.peers import results
from benchmarks.peers.contestants import CACHE, CHAT, HTTP, Started
from benchmarks.peers.load import Route
from benchmarks.peers.measure import upstream_process
from benchmarks.peers.processes import free_port, rss_bytes, running, settled_cpu
from benchmarks.peers.scenarios import Plan, many_short, quantiles

from gyre.config.sections import LimitsConfig, ProxyConfig, RouterConfig
from gyre.controller.proxy_processes import shard_plan
from gyre.proxy.admin_client import control
from gyre.proxy.spec import ProxySpec
from gyre.storage.files import write_plan
from gyre.types.ids import shard_of
from gyre.types.sampling import SamplingParams

SHARDS = (1, 2)
EXECUTIONS = 64
PLAN = Plan(calls=4_096, warm_calls=512, connections=32)
"""Of all shards together; calls, connections and executions are divided among them."""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--dry", action="store_true", help="print the samples, write no result")
    args = parser.parse_args()
    load_before = os.getloadavg()[0]
    samples: dict[str, list[dict[str, Any]]] = {_case(shards): [] for shards in SHARDS}
    for run in range(args.runs):
        for shards in SHARDS[:: 1 if run % 2 else -1]:
            with upstream_process("short", 1) as (engine, port):
                sample = _measured(shards, engine, port)
            samples[_case(shards)].append(sample)
            print(_case(shards), sample, flush=True)
    if not args.dry:
        path = results.write(
            "scale-shards",
            samples=samples,
            settings={"runs": args.runs, "executions": EXECUTIONS, "connections": PLAN.connections},
            packages=results.versions({"gyre": (Path(sys.executable), HTTP)}),
            load_average=(load_before, os.getloadavg()[0]),
        )
        print(path)


def _case(shards: int) -> str:
    return "1 shard" if shards == 1 else f"{shards} shards"


def _measured(shards: int, engine: int, port: int) -> dict[str, Any]:
    with (
        tempfile.TemporaryDirectory(dir=CACHE) as folder,
        _started(Path(folder), shards, f"http://127.0.0.1:{port}") as started,
    ):
        return uvloop.run(_costed(started, engine))


@contextmanager
def _started(folder: Path, shards: int, engine: str) -> Iterator[list[Started]]:
    """Every shard in a process of its own, as a run starts them, with its executions open."""
    first = ProxySpec(
        folder=folder / "run",
        model=str(CACHE / "tokenizer"),
        engines=(f"sglang={engine}",),
        family="qwen3",
        thinking="all",
        sampling=SamplingParams(),
        proxy=ProxyConfig(port=0, context_tokens=1_000_000, shards=shards),
        router=RouterConfig(capacity=1024),
        limits=LimitsConfig(calls_per_minute=1_000_000),
        open=(),
    )
    with ExitStack() as stack:
        found = []
        for shard in range(shards):
            port = free_port()
            told = shard_plan(first, shard)
            told = replace(told, proxy=replace(told.proxy, port=port))
            path = write_plan(folder / f"shard-{shard}.json", told)
            command = [sys.executable, "-m", "gyre.proxy.main", str(path)]
            log = folder / f"shard-{shard}.log"
            pid = stack.enter_context(
                running(command, port=port, probe="/health", environment={}, log=log)
            )
            found.append((pid, port))
        names = [f"g{number:05d}-00" for number in range(EXECUTIONS)]
        routes = _opened(folder / "run", names, shards)
        yield [
            Started(pid=pid, port=port, routes=routes[shard])
            for shard, (pid, port) in enumerate(found)
        ]


def _opened(run: Path, names: Sequence[str], shards: int) -> list[list[Route]]:
    """By shard the routes of its executions."""
    routes: list[list[Route]] = [[] for _ in range(shards)]
    for name in names:
        found = control(run, "POST", "executions", {"id": name}, execution=name)
        headers = {"authorization": f"Bearer {found['key']}"}
        route = Route(path=found["path"] + CHAT, headers=headers)
        routes[shard_of(name, shards)].append(route)
    return routes


async def _costed(started: Sequence[Started], engine: int) -> dict[str, Any]:
    """CPU of all shards and of the engine until they are idle, and of whoever makes the load."""
    share = replace(PLAN, connections=PLAN.connections // len(started))
    await _loaded(started, share, PLAN.warm_calls // len(started), first=0)
    pids = [*(one.pid for one in started), engine]
    before = [settled_cpu(one) for one in pids]
    own, began = time.process_time(), time.perf_counter()
    answers = await _loaded(started, share, PLAN.calls // len(started), first=10**6)
    wall_s, own_s = time.perf_counter() - began, time.process_time() - own
    *used, engine_s = (
        settled_cpu(one).since(then).total_s for one, then in zip(pids, before, strict=True)
    )
    return {
        "calls": len(answers),
        "failed": sum(one.status != 200 for one in answers),
        "cpu_s": round(sum(used), 6),
        "wall_s": round(wall_s, 4),
        "calls_per_s": round(len(answers) / wall_s, 1),
        "load_cpu_s": round(own_s, 4),
        "engine_cpu_s": round(engine_s, 4),
        "least_share": round(min(used) / sum(used), 4),
        "latency_s": quantiles([one.total_s for one in answers]),
        "rss_bytes": sum(rss_bytes(one.pid) for one in started),
    }


async def _loaded(started: Sequence[Started], share: Plan, calls: int, *, first: int) -> list[Any]:
    loads = (many_short(one, share, calls, first=first) for one in started)
    return [one for some in await asyncio.gather(*loads) for one in some]


if __name__ == "__main__":
    main()
