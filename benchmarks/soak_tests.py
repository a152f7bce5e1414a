"""`make test` again and again from fresh clones, idle and beside two busy loops, to see it fail.

    scripts/soak-tests 6

The last third of the runs have two busy loops beside them. Every run is kept with its time, its
counts and every failure; nothing is run twice, and a soak that was interrupted goes on behind the
runs that this commit has had (build/soak-tests). The command fails if any run did.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.peers import results

ROOT = Path(__file__).parents[1]
LOGS = ROOT / "build" / "soak-tests"
BUSY_LOOPS = 2
ENDED = re.compile(r"^(?:=+ )?((?:\d+ \w+,? ?)+) in [\d.]+s", re.MULTILINE)
FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)


@contextmanager
def busy(loops: int) -> Iterator[None]:
    """Processes that do nothing but take a core each, if they get one."""
    there = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(loops)]
    try:
        yield
    finally:
        for process in there:
            process.kill()
            process.wait()


def run(number: int, commit: str, *, loops: int) -> dict[str, Any]:
    """One run of `make test` in a clone of its own, or what it was if this commit has had it."""
    kept = LOGS / commit / f"{number}.json"
    if kept.exists():
        return dict(json.loads(kept.read_text()))
    kept.parent.mkdir(parents=True, exist_ok=True)
    log = kept.with_suffix(".log")
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    with tempfile.TemporaryDirectory(prefix="gyre-soak-") as folder, busy(loops):
        clone = Path(folder) / "gyre"
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
        subprocess.run(["git", "-C", str(clone), "checkout", "--quiet", commit], check=True)
        begun = time.monotonic()
        with log.open("w") as out:
            command = ["make", "test"]
            done = subprocess.run(command, cwd=clone, env=environment, stdout=out, stderr=out)
        seconds = time.monotonic() - begun
    said = log.read_text(errors="replace")
    counts = ENDED.findall(said)
    sample = {
        "busy_loops": loops,
        "seconds": round(seconds, 1),
        "exit_status": done.returncode,
        "counts": counts[-1].strip() if counts else "",
        "failures": sorted(set(FAILED.findall(said))),
    }
    kept.write_text(json.dumps(sample))
    return sample


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", type=int, help="how many, the last third of them beside busy loops")
    args = parser.parse_args()
    if args.runs < 1:
        parser.error(f"runs: expected 1 or more, found {args.runs}")
    git = ["git", "-C", str(ROOT), "rev-parse", "HEAD"]
    commit = subprocess.run(git, check=True, capture_output=True, text=True).stdout.strip()
    before, runs = os.getloadavg()[0], []
    for number in range(args.runs):
        loops = BUSY_LOOPS if number >= args.runs - args.runs // 3 else 0
        runs.append(run(number + 1, commit, loops=loops))
        print(f"{number + 1} of {args.runs}: {runs[-1]}", flush=True)
    samples: dict[str, list[dict[str, Any]]] = {}
    for one in runs:
        beside = f"beside {one['busy_loops']} busy loops" if one["busy_loops"] else "idle"
        samples.setdefault(beside, []).append(one)
    path = results.write(
        "soak-tests",
        samples=samples,
        settings={"runs": args.runs, "busy_loops": BUSY_LOOPS},
        packages={},
        load_average=(before, os.getloadavg()[0]),
        commit=commit,
    )
    print(path)
    return int(any(one["exit_status"] for one in runs))


if __name__ == "__main__":
    sys.exit(main())
