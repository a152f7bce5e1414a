"""Seeds of the simulation from the command line: one with all that happens, or very many."""

import argparse
import hashlib
import json
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from tests.chaos_sim.planted import PLANTED
from tests.chaos_sim.simulation import simulate

RESULTS = Path(__file__).parent / "results" / "seeds.jsonl"
ROOT = Path(__file__).parents[2]
CHUNK = 100
"""Seeds of one line of the results."""


def sources():
    """What results belong to: another line of code may be another run."""
    state = hashlib.sha256()
    for folder in ("src/gyre", "tests/chaos_sim", "tests/scheduler"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            state.update(path.read_bytes())
    return state.hexdigest()[:16]


def chunk(first):
    """What a hundred seeds came to, as a line of the results."""
    began = time.process_time()
    faults, events, virtual_s = Counter(), 0, 0.0
    reasons, violations = Counter(), {}
    for seed in range(first, first + CHUNK):
        result = simulate(seed)
        faults.update(result.faults)
        reasons[result.reason] += 1
        events += result.num_events
        virtual_s += result.seconds
        if result.violations:
            violations[seed] = result.violations
    return {
        "first": first,
        "seeds": CHUNK,
        "sources": SOURCES,
        "events": events,
        "virtual_s": round(virtual_s),
        "cpu_s": round(time.process_time() - began, 1),
        "ends": dict(sorted(reasons.items())),
        "faults": dict(sorted(faults.items())),
        "violations": violations,
    }


def known(path):
    """Lines that are there already."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def write(path, lines):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(one) + "\n" for one in lines))


def many(count, path, jobs):
    """All seeds up to `count` that the results do not have yet; they are written as they come.

    Results of other sources are forgotten.
    """
    done = [one for one in known(path) if one["sources"] == SOURCES]
    write(path, done)
    left = sorted(set(range(0, count, CHUNK)) - {one["first"] for one in done})
    bad = sum(len(one["violations"]) for one in done)
    with ProcessPoolExecutor(jobs) as pool, path.open("a") as file:
        for found in pool.map(chunk, left):
            file.write(json.dumps(found) + "\n")
            file.flush()
            bad += len(found["violations"])
            last = found["first"] + CHUNK - 1
            print(f"{found['first']:6d} to {last:6d}: {len(found['violations'])} bad", flush=True)
            for seed, said in found["violations"].items():
                print(f"  seed {seed}: {said[0]}", flush=True)
    write(path, sorted(known(path), key=lambda one: one["first"]))
    return bad


SOURCES = sources()


def main():
    asked = argparse.ArgumentParser(prog="scripts/chaos")
    asked.add_argument("--seed", type=int, help="print all that happens in this one")
    asked.add_argument("--planted", choices=sorted(PLANTED), help="with this bug, beside --seed")
    asked.add_argument("--seeds", type=int, default=10_000, help="how many, from 0")
    asked.add_argument("--results", type=Path, default=RESULTS, help="where a line for 100 goes")
    asked.add_argument("--jobs", type=int, default=1, help="processes at once")
    options = asked.parse_args()
    if options.seed is None:
        return 1 if many(options.seeds, options.results, options.jobs) else 0
    planted = PLANTED.get(options.planted)
    result = simulate(options.seed) if planted is None else planted.simulate(options.seed)
    print("\n".join(result.trace))
    return 1 if result.violations else 0


if __name__ == "__main__":
    sys.exit(main())
