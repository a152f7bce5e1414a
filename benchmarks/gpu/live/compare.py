"""Elastic, the best async and colocate on four cells of one GPU: the same work, live.

    python -m benchmarks.gpu.live.compare FOLDER

Each cell has a quarter of the GPU's multiprocessors by MPS, a real engine and a real trainer of a
model of random weights, and everything else of a run is as `gyre train` makes it. The simulator,
calibrated on the first run, chooses async's split and says beforehand how long the others take.
"""

import argparse
import gzip
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, fields, replace
from itertools import product
from pathlib import Path
from statistics import fmean, median
from typing import Any

from benchmarks.gpu.live import measured, runs
from benchmarks.gpu.live.predict import Calibration, calibrated, foretold, variants
from benchmarks.gpu.live.work import Scale
from benchmarks.gpu.moves.mps import together
from benchmarks.live.running import Kept, Ran
from benchmarks.peers import results

from gyre.sim.durations import HOUR_S
from gyre.sim.world import run as simulate

PACKAGES = ("aiohttp", "msgspec", "torch", "transformers", "triton", "uvicorn", "uvloop")
FIRST = ("elastic", 0)
"""Placement and seed of the run that the simulator is calibrated on, before all others."""
SHARE = 100 // runs.CELLS
"""Percent of the GPU's multiprocessors that a cell has."""
SHARE_VARIABLE = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
SCALES = {
    "cuda": Scale(mean_s=8.0, tokens_per_s=200.0, turn_s=1.5, told_fraction=3.5),
    "cpu": Scale(mean_s=6.0, tokens_per_s=3.0, turn_s=2.0, told_fraction=0.8),
}
MACHINES: dict[str, dict[str, Any]] = {
    "cuda": {"kv_tokens": 262_144, "pack_tokens": 4_096, "shards": 2},
    "cpu": {"kv_tokens": 32_768, "pack_tokens": 512, "shards": 1},
}
SIZES = {"cuda": "0.12B", "cpu": "small"}


class Comparison:
    """Runs and what was foretold of them, kept as they come."""

    def __init__(
        self, place: Path, kept: Kept, *, device: str, steps: int, scale: Mapping[str, float]
    ) -> None:
        """`scale` is put over the device's own."""
        self._place = place
        self._kept = kept
        self._steps = steps
        self.scale = replace(SCALES[device], **scale)
        self.machine = runs.Machine(
            model=place / f"model-{SIZES[device]}", device=device, **MACHINES[device]
        )

    def calibration(self) -> Calibration:
        """Of the first run, whose cells compile what those of all others find compiled."""
        found = self._kept.get("calibration")
        if found is None:
            ran = self._live(*FIRST, training=runs.CELLS)
            calibration = calibrated(ran, self.scale, seed=FIRST[1])
            found = self._kept.add(asdict(calibration), "calibration")
        return Calibration(**found)

    def simulated(self, found: Calibration, seeds: Sequence[int]) -> dict[str, list[float]]:
        """Seconds of every variant, seed by seed."""
        return {
            name: [
                HOUR_S
                * simulate(
                    foretold(found, self.scale, schedule=schedule, cells=cells, seed=seed)
                ).hours
                for seed in seeds
            ]
            for name, schedule, cells in variants(steps=self._steps)
        }

    def measured(self, name: str, seed: int) -> dict[str, Any] | None:
        """What a run came to, if there was one."""
        return self._kept.get(name, seed)

    def measure(self, name: str, seed: int, *, training: int) -> None:
        """One live run, or a word on why there is none; the others are measured all the same."""
        with suppress(subprocess.CalledProcessError):
            self._live(name, seed, training=training)

    def _live(self, name: str, seed: int, *, training: int) -> Ran:
        """A run whose journal stays, packed, when all else of it is gone."""
        if not self.machine.model.exists():
            _make(self.machine.model, self.machine.device)
        folder = self._place / f"{name}-{seed}"
        ran = runs.live(
            folder,
            name,
            self.machine,
            self.scale,
            seed=seed,
            steps=self._steps,
            training=training,
        )
        packed = self._place / "journals" / f"{folder.name}.gz"
        packed.parent.mkdir(exist_ok=True)
        packed.write_bytes(gzip.compress((folder / "run" / "journal").read_bytes()))
        self._kept.add(measured.sample(ran, folder / "run"), name, seed)
        return ran


def main() -> None:
    args = _arguments()
    began = time.monotonic()
    load_before = os.getloadavg()[0]
    place = args.place.absolute()
    place.mkdir(parents=True, exist_ok=True)
    samples: dict[str, list[dict[str, Any]]] = {name: [] for name in runs.SCHEDULES}
    with _quarters(place) as are_together:
        comparison = Comparison(
            place,
            Kept(place / "samples.jsonl"),
            device=args.device,
            steps=args.steps,
            scale=dict(args.scale),
        )
        calibration = comparison.calibration()
        print(calibration, flush=True)
        seeds = range(args.runs)
        simulated = comparison.simulated(calibration, seeds)
        training = _best_split(simulated)
        for seed, name in product(seeds, runs.SCHEDULES):
            is_made = comparison.measured(name, seed) is not None
            if not is_made and time.monotonic() - began < args.within:
                comparison.measure(name, seed, training=training)
            if (found := comparison.measured(name, seed)) is not None:
                predicted_s = simulated[live_variant(name, training)][seed]
                told = {"seed": seed, "predicted_s": predicted_s}
                samples[name].append(told | found)
                print(name, samples[name][-1], flush=True)
    _print(samples, simulated)
    if not args.dry:
        settings = {
            "mps": are_together,
            "percent of multiprocessors": SHARE,
            "model": SIZES[args.device],
            "steps": args.steps,
            "batch": [runs.BATCH, runs.GROUP],
            "capacity": runs.CAPACITY,
            "staleness": runs.STALENESS,
            "scale": asdict(comparison.scale),
            "machine": {**asdict(comparison.machine), "model": SIZES[args.device]},
            "schedules": runs.SCHEDULES,
            "training cells of async": training,
            "calibrated on": FIRST,
            "calibration": asdict(calibration),
            "simulated_s": simulated,
        }
        path = results.write(
            "gpu-live",
            samples={name: found for name, found in samples.items() if found},
            settings=settings,
            packages=results.versions({"gyre": (Path(sys.executable), PACKAGES)}),
            load_average=(load_before, os.getloadavg()[0]),
            device=_device_name(args.device),
            commit=args.commit,
        )
        print(path)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("place", type=Path, help="a folder; what was measured there is kept")
    parser.add_argument("--device", choices=tuple(SCALES), default="cuda")
    parser.add_argument("--runs", type=int, default=3, help="of each placement")
    parser.add_argument("--steps", type=int, default=runs.STEPS)
    parser.add_argument(
        "--scale",
        type=_setting,
        nargs="+",
        default=(),
        metavar="NAME=NUMBER",
        help=f"of {', '.join(one.name for one in fields(Scale))}",
    )
    parser.add_argument("--within", type=float, default=3600.0, help="no run begins after, s")
    parser.add_argument("--commit", help="of the sources, where there is no repository to ask")
    parser.add_argument("--dry", action="store_true", help="print the samples, write no result")
    return parser.parse_args()


def _setting(text: str) -> tuple[str, float]:
    name, _, value = text.partition("=")
    return name, float(value)


@contextmanager
def _quarters(place: Path) -> Iterator[bool]:
    """Processes have a quarter of the GPU each, and find compiled what others have compiled."""
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(place / "compiled"))
    # Cells find the modules of the benchmarks wherever they are started.
    os.environ["PYTHONPATH"] = os.pathsep.join([str(results.ROOT / "src"), str(results.ROOT)])
    with together() as are_together:
        os.environ[SHARE_VARIABLE] = str(SHARE)
        yield are_together


def _make(model: Path, device: str) -> None:
    """In a process that leaves the device after it."""
    module = [sys.executable, "-m", "benchmarks.gpu.live.model"]
    subprocess.run([*module, str(model), SIZES[device], device], check=True)


def _device_name(device: str) -> str | None:
    if device == "cpu":
        return None
    asked = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    return subprocess.run(asked, check=True, capture_output=True, text=True).stdout.split("\n")[0]


def live_variant(name: str, training: int) -> str:
    """What the simulator calls a placement as it runs live."""
    split = f", {training} train" if name == "async" else ""
    streams = "streaming" if runs.SCHEDULES[name].get("streaming", True) else "whole bursts"
    return f"{name}{split}, {streams}"


def _best_split(simulated: Mapping[str, Sequence[float]]) -> int:
    """Cells that train under async, by which it takes the least time on average."""
    return min(
        range(1, runs.CELLS), key=lambda training: fmean(simulated[live_variant("async", training)])
    )


def _print(
    samples: Mapping[str, list[dict[str, Any]]], simulated: Mapping[str, Sequence[float]]
) -> None:
    for name, seconds in simulated.items():
        print(f"simulated {name:35} {fmean(seconds):7.1f} s")
    best = median(one["seconds"] for one in samples["elastic"]) if samples["elastic"] else None
    for name in runs.SCHEDULES:
        if not samples[name] or best is None:
            continue
        seconds = [one["seconds"] for one in samples[name]]
        off = [one["predicted_s"] / one["seconds"] - 1 for one in samples[name]]
        print(
            f"{name:10} {median(seconds):6.1f} s, {median(seconds) / best:.2f}x elastic's;",
            f"predicted {' '.join(f'{100 * one:+.1f} %' for one in off)};",
            f"failed calls {sum(one['failed_calls'] for one in samples[name])};",
            f"staleness {fmean(one['staleness mean'] for one in samples[name]):.2f}",
        )


if __name__ == "__main__":
    main()
