"""The quick start as `make demo` runs it, over seeds, and with rewards dealt out by chance."""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.live.compare import PACKAGES
from benchmarks.live.running import Kept
from benchmarks.peers import results

from gyre.controller.controller import JOURNAL_EVENTS
from gyre.journal.journal import read
from gyre.types.run_events import StepMade

FILE = results.ROOT / "examples" / "quickstart.toml"
WAYS = {"as earned": (), "shuffled": ("objective.shuffle_rewards=true",)}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--dry", action="store_true", help="print the samples, write no result")
    parser.add_argument("--kept", type=Path, help="samples are added here, and not made again")
    args = parser.parse_args()
    kept = Kept(args.kept)
    load_before = os.getloadavg()[0]
    samples: dict[str, list[dict[str, Any]]] = {way: [] for way in WAYS}
    with tempfile.TemporaryDirectory(prefix="gyre-quickstart-") as folder:
        for seed in range(args.seeds):
            for way, overrides in WAYS.items():
                place = Path(folder) / f"{way.replace(' ', '-')}-{seed}"
                sample = kept.get(way, seed)
                if sample is None:
                    sample = kept.add(_run(place, seed, overrides), way, seed)
                samples[way].append(sample)
                print(way, samples[way][-1], flush=True)
    if not args.dry:
        path = results.write(
            "live-quickstart",
            samples=samples,
            settings={"file": FILE.read_text()},
            packages=results.versions({"gyre": (Path(sys.executable), PACKAGES)}),
            load_average=(load_before, os.getloadavg()[0]),
        )
        print(path)


def _run(folder: Path, seed: int, overrides: tuple[str, ...]) -> dict[str, Any]:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    command = [sys.executable, "-m", "gyre", "train", str(FILE)]
    command += [f"run.folder={folder}", f"run.seed={seed}", *overrides]
    began = time.monotonic()
    subprocess.run(
        command,
        check=True,
        cwd=results.ROOT,
        env={**os.environ, "PATH": path},
        stdout=subprocess.DEVNULL,
    )
    seconds = time.monotonic() - began
    steps = [fact for _, fact in read(folder / "journal", kinds=JOURNAL_EVENTS).facts((StepMade,))]
    rewards = [one.reward for one in steps]
    return {"seed": seed, "seconds": seconds, "rewards": rewards}


if __name__ == "__main__":
    main()
