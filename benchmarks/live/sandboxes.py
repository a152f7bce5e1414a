"""Many executions at once with an agent program that does next to nothing, in each sandbox."""

import argparse
import asyncio
import json
import os
import secrets
import signal
import statistics
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

from benchmarks.live.compare import PACKAGES
from benchmarks.peers import results

from gyre.cluster.fork_client import ForkClient
from gyre.cluster.process import ForkedProcess
from gyre.rollout.main import Secrets
from gyre.rollout.spec import ExecutionSpec, write_order
from gyre.sandboxes.local.sandbox import LocalSandbox, SandboxLayout
from gyre.sandboxes.process_tree import descendants
from gyre.types.ids import ExecutionId
from gyre.types.tasks import Command, EvaluationRule, Limits, SandboxSpec, Task

AT_ONCE = 64
ALONE = 100
"""Sandboxes of one process, without supervisors."""
LIMITS = Limits(memory_bytes=2**30, processes=64, disk_bytes=2**28)
WAIT_S = 120.0
POLL_S = 0.002
KINDS: tuple[Literal["process", "local"], ...] = ("process", "local")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--dry", action="store_true", help="print the samples, write no result")
    parser.add_argument("--runs", type=int, default=5)
    args = parser.parse_args()
    load_before = os.getloadavg()[0]
    samples: dict[str, list[dict[str, Any]]] = {kind: [] for kind in (*KINDS, "alone")}
    for _ in range(args.runs):
        for kind in KINDS:
            with tempfile.TemporaryDirectory(prefix="gyre-sandboxes-") as folder:
                samples[kind].append(asyncio.run(_supervised(Path(folder), kind)))
                print(kind, samples[kind][-1])
        with tempfile.TemporaryDirectory(prefix="gyre-sandboxes-") as folder:
            samples["alone"].append(asyncio.run(_alone(Path(folder))))
            print("alone", samples["alone"][-1])
    if not args.dry:
        path = results.write(
            "live-sandboxes",
            samples=samples,
            settings={"at_once": AT_ONCE, "alone": ALONE, "limits": asdict(LIMITS)},
            packages=results.versions({"gyre": (Path(sys.executable), PACKAGES)}),
            load_average=(load_before, os.getloadavg()[0]),
        )
        print(path)


async def _supervised(folder: Path, kind: Literal["process", "local"]) -> dict[str, Any]:
    """Executions under supervisors: how soon they run, what they take, how soon they are over."""
    fork_client = await ForkClient.open("gyre.rollout.main", folder / "nursery.log")
    try:
        # One first, so that the nursery has imported everything.
        await _end([(await _launch(fork_client, folder / "first", kind))[0]], folder)
        began = time.monotonic()
        launched = await asyncio.gather(
            *(_launch(fork_client, folder / f"e{number}", kind) for number in range(AT_ONCE))
        )
        ready_s = time.monotonic() - began
        pids = {pid for child, _ in launched for pid in descendants(child.pid)}
        memory = sum(map(_memory, pids))
        ended = time.monotonic()
        await _end([child for child, _ in launched], folder)
        latencies = sorted(latency for _, latency in launched)
        return {
            "all_ready_s": ready_s,
            "ready_median_s": statistics.median(latencies),
            "ready_last_s": latencies[-1],
            "all_closed_s": time.monotonic() - ended,
            "memory_each_mib": memory / AT_ONCE / 2**20,
            "processes_each": len(pids) / AT_ONCE,
        }
    finally:
        await fork_client.close()


async def _launch(fork_client: ForkClient, folder: Path, kind: Any) -> tuple[ForkedProcess, float]:
    """An execution whose agent program has begun, and how long that took."""
    began = time.monotonic()
    evaluation = EvaluationRule(
        argv=("sh", "-c", "echo 1 > $GYRE_RESULTS/reward.txt"), score="reward.txt"
    )
    order = ExecutionSpec(
        execution=ExecutionId(folder.name),
        task=Task(id="wait", instruction="wait", files=None, evaluation=evaluation),
        url="http://127.0.0.1:9/exec/e",
        harness=("sh", "-c", "echo > work; exec sleep 600"),
        variables={},
        agent_s=600.0,
        overall_s=1200.0,
        sandbox=SandboxSpec(kind=kind, limits=LIMITS),
    )
    path = write_order(folder, order)
    secret = json.dumps(asdict(Secrets(key="k")))
    child = await fork_client.fork(
        folder.name, [str(path)], log=folder / "supervisor.log", secret=secret
    )
    await _until((folder / "workspace" / "work").exists)
    return child, time.monotonic() - began


async def _end(children: list[ForkedProcess], folder: Path) -> None:
    """All are cancelled, assessed and closed."""
    for child in children:
        child.signal(signal.SIGTERM)
    statuses = await asyncio.gather(*(child.wait() for child in children))
    assert {0} == set(statuses), folder


async def _alone(folder: Path) -> dict[str, Any]:
    """Sandboxes without supervisors: how soon all programs have begun, and have ended."""
    made = []
    for number in range(ALONE):
        place = SandboxLayout(folder=folder / f"place{number}", home=folder / f"home{number}")
        made.append(LocalSandbox(secrets.token_hex(16), place, most=LIMITS))
        (folder / f"workspace{number}").mkdir()

    async def begin(number: int) -> None:
        await made[number].prepare(str(folder / f"workspace{number}"))
        command = Command(argv=("sleep", "600"))
        output = str(folder / f"output{number}")
        await made[number].start(command, output=output, most_bytes=1000)

    began = time.monotonic()
    await asyncio.gather(*map(begin, range(ALONE)))
    ready_s = time.monotonic() - began
    memory = sum(map(_memory, descendants(os.getpid())[1:]))
    ended = time.monotonic()
    await asyncio.gather(*(one.kill() for one in made))
    return {
        "all_ready_s": ready_s,
        "all_killed_s": time.monotonic() - ended,
        "memory_each_mib": memory / ALONE / 2**20,
    }


def _memory(pid: int) -> int:
    """Bytes, each shared page by its share."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))


async def _until(holds: Any) -> None:
    until = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < until, "waited too long"
        await asyncio.sleep(POLL_S)


if __name__ == "__main__":
    main()
