"""Policies beyond the paper on its row E0, and how they fare where decoding slows under load."""

import argparse
import os

from benchmarks.sim.calibrate import over_seeds
from benchmarks.sim.paper import sample, write

from gyre.simulator.paper import TABLE
from gyre.simulator.variants import POLICIES, decode_bound

SHARES = (0.0, 0.2, 0.4, 0.6, 0.8)
"""Of an execution's time on a full engine: what stretches in proportion to load."""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--dry", action="store_true", help="print the samples, write no result")
    args = parser.parse_args()
    load_before = os.getloadavg()[0]
    samples = {}
    for share in SHARES:
        for name, change in POLICIES.items():
            scenario = decode_bound(change(TABLE["E0"]), share=share)
            runs = [sample(record) for record in over_seeds(scenario, range(args.seeds))]
            case = f"{name}, decode share {share:g}"
            samples[case] = runs
            print(f"{case}: {sum(one['hours'] for one in runs) / len(runs):.2f} h", flush=True)
    settings = {"seeds": args.seeds, "row": "E0", "shares": SHARES}
    write("sim-policies", samples, settings=settings, load_before=load_before, dry=args.dry)


if __name__ == "__main__":
    main()
