"""Elastic, the best asyncs and colocate on four cells of one GPU: the same work, live.

    python -m benchmarks.gpu.live.compare FOLDER

Each cell has a quarter of the GPU's multiprocessors by MPS, a real engine and a real trainer of a
model of random weights, and everything else of a run is as `gyre train` makes it. A pilot run says
how much executions have to do, unless that is given, and the simulator, calibrated on the first
run, chooses the splits of async and says beforehand how long the others take.
"""

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from itertools import product
from pathlib import Path
from statistics import fmean, median
from typing import Any

from benchmarks.gpu.live import runs
from benchmarks.gpu.live.campaign import SETTINGS, Campaign
from benchmarks.gpu.live.work import Scale
from benchmarks.gpu.moves.mps import together
from benchmarks.live.running import end_when_told
from benchmarks.peers import results

PACKAGES = ("aiohttp", "msgspec", "torch", "transformers", "triton", "uvicorn", "uvloop")
SHARE = 100 // runs.CELLS
"""Percent of the GPU's multiprocessors that a cell has."""
SHARE_VARIABLE = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"

Samples = dict[str, list[dict[str, Any]]]
"""By placement, a run each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """What all runs came to, beside what the simulator says of them."""

    samples: Samples = field(default_factory=dict)
    simulated: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """Seconds by variant, seed by seed."""
    training: Mapping[str, int] = field(default_factory=dict)
    """Cells that train where others only serve, by placement."""


def main() -> None:
    args = _arguments()
    end_when_told()
    began = time.monotonic()
    load_before = os.getloadavg()[0]
    place = args.place.absolute()
    place.mkdir(parents=True, exist_ok=True)
    with quarters(place) as are_together:
        campaign = Campaign(
            place,
            args.device,
            steps=args.steps,
            longest_s=args.longest,
            scale=dict(args.scale),
        )
        print(campaign.scale, "by pilot", campaign.pilot, flush=True)
        found = compared(
            campaign, args.runs, may_begin=lambda: time.monotonic() - began < args.within
        )
    _print(found)
    if found.samples and not args.dry:
        path = results.write(
            "gpu-live",
            samples=found.samples,
            settings={"mps": are_together, **_settings(campaign, found)},
            packages=results.versions({"gyre": (Path(sys.executable), PACKAGES)}),
            load_average=(load_before, os.getloadavg()[0]),
            device=_device_name(args.device),
            commit=args.commit,
        )
        print(path)


def compared(campaign: Campaign, times: int, *, may_begin: Callable[[], bool]) -> Compared:
    """Runs as long as they may begin; each with what was foretold of it, if anything was."""
    seeds = range(times)
    for seed in seeds:
        if campaign.calibration is None and may_begin():
            campaign.measure("elastic", seed)
    calibration = campaign.calibration
    if calibration is None:
        return Compared()
    print(calibration, flush=True)
    simulated = campaign.simulated(calibration, seeds)
    training = {name: _best_split(name, simulated) for name in runs.SCHEDULES}
    samples: Samples = {}
    for seed, name in product(seeds, runs.SCHEDULES):
        if campaign.measured(name, seed) is None and may_begin():
            campaign.measure(name, seed, training=training[name])
        if (sample := campaign.measured(name, seed)) is not None:
            predicted_s = simulated[live_variant(name, training[name])][seed]
            samples.setdefault(name, []).append(
                {"seed": seed, "predicted_s": predicted_s, **sample}
            )
            print(name, samples[name][-1], flush=True)
    chosen = {name: cells for name, cells in training.items() if runs.has_split(name)}
    return Compared(samples=samples, simulated=simulated, training=chosen)


def _settings(campaign: Campaign, found: Compared) -> dict[str, Any]:
    calibration = campaign.calibration
    assert calibration is not None
    model = campaign.setting.model
    return {
        "percent of multiprocessors": SHARE,
        "model": model,
        "steps": campaign.steps,
        "size": asdict(campaign.size),
        "staleness": runs.STALENESS,
        "pilot": campaign.pilot,
        "scale": asdict(campaign.scale),
        "machine": {**asdict(campaign.machine), "model": model},
        "schedules": runs.SCHEDULES,
        **{f"training cells of {name}": cells for name, cells in found.training.items()},
        "calibrated on": "the first run under elastic",
        "calibration": asdict(calibration),
        "simulated_s": found.simulated,
    }


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("place", type=Path, help="a folder; what was measured there is kept")
    parser.add_argument("--device", choices=tuple(SETTINGS), default="cuda")
    parser.add_argument("--runs", type=int, default=3, help="of each placement")
    parser.add_argument("--steps", type=int, default=runs.STEPS)
    parser.add_argument(
        "--scale",
        type=scale_setting,
        nargs="+",
        default=(),
        metavar="NAME=NUMBER",
        help=f"of {', '.join(one.name for one in fields(Scale))}",
    )
    parser.add_argument("--within", type=float, default=3600.0, help="no run begins after, s")
    parser.add_argument("--longest", type=float, default=240.0, help="a run is stopped after, s")
    parser.add_argument("--commit", help="of the sources, where there is no repository to ask")
    parser.add_argument("--dry", action="store_true", help="print the samples, write no result")
    return parser.parse_args()


def scale_setting(text: str) -> tuple[str, float]:
    """A name of Scale and its number, as they are asked for."""
    name, _, value = text.partition("=")
    return name, float(value)


@contextmanager
def quarters(place: Path) -> Iterator[bool]:
    """Processes have a quarter of the GPU each, and find compiled what others have compiled."""
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(place / "compiled"))
    # Cells find the modules of the benchmarks wherever they are started.
    paths = (results.ROOT / "src", results.ROOT, os.environ.get("PYTHONPATH"))
    os.environ["PYTHONPATH"] = os.pathsep.join(str(one) for one in paths if one)
    with together() as are_together:
        os.environ[SHARE_VARIABLE] = str(SHARE)
        yield are_together


def _device_name(device: str) -> str | None:
    if device == "cpu":
        return None
    asked = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    return subprocess.run(asked, check=True, capture_output=True, text=True).stdout.split("\n")[0]


def live_variant(name: str, training: int) -> str:
    """What the simulator calls a placement as it runs live."""
    schedule = runs.SCHEDULES[name]
    split = f", {training} train" if runs.has_split(name) else ""
    streams = "streaming" if schedule.get("streaming", True) else "whole bursts"
    return f"{schedule['placement']}{split}, {streams}"


def _best_split(name: str, simulated: Mapping[str, Sequence[float]]) -> int:
    """Cells that train, by which a placement takes the least time on average."""
    if not runs.has_split(name):
        return runs.CELLS
    return min(
        range(1, runs.CELLS), key=lambda training: fmean(simulated[live_variant(name, training)])
    )


def _print(found: Compared) -> None:
    for name, seconds in found.simulated.items():
        print(f"simulated {name:35} {fmean(seconds):7.1f} s")
    best = [one["seconds"] for one in found.samples.get("elastic", ())]
    for name, samples in found.samples.items():
        seconds = [one["seconds"] for one in samples]
        ratio = f"{median(seconds) / median(best):.2f}x elastic's" if best else ""
        off = [one["predicted_s"] / one["seconds"] - 1 for one in samples]
        print(
            f"{name:10} {' '.join(f'{one:.1f}' for one in seconds)} s, {ratio};",
            f"predicted {' '.join(f'{100 * one:+.1f} %' for one in off)};",
            f"training {fmean(one['share training'] for one in samples):.2f};",
            f"start {fmean(one['start_s'] for one in samples):.1f} s,",
            f"end {fmean(one['leave_s'] for one in samples):.1f} s;",
            f"failed calls {sum(one['failed_calls'] for one in samples)};",
            f"staleness {fmean(one['staleness mean'] for one in samples):.2f}",
        )


if __name__ == "__main__":
    main()
