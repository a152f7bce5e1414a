"""A real model learns under three budgets at once: python -m benchmarks.gpu.learn.measure.

Every budget is a whole `gyre train` of its own, and all of them share one GPU by MPS; with --cpu
they are smaller and run one by one. A run that is not through when its time is over is told to
stop, and the weights it has published last are measured on the held-out tasks, as those of a run
that ends by itself are.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, fields, replace
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.gpu.learn.runs import (
    BUDGETS,
    HELD_OUT,
    ON_A_CPU,
    Sizes,
    sample,
    source,
    tables,
    written,
)
from benchmarks.gpu.live.compare import SHARE_VARIABLE
from benchmarks.gpu.moves.mps import together
from benchmarks.live.left import Left
from benchmarks.live.running import Kept, end_when_told, ended
from benchmarks.peers import results

PACKAGES = ("torch", "transformers", "safetensors", "tokenizers", "numpy")
LOOK_S = 2.0
STOP_S = 30.0
"""How long a run that was told to stop may take."""
EVALUATE_S = 65.0
MEMORY_BYTES = 2**33
"""What the folders of three runs take at most, with room to spare."""


class Running:
    """One run in a folder of its own, whatever becomes of the others."""

    def __init__(self, place: Path, name: str, sizes: Sizes, seed: int, steps: int) -> None:
        self.name = name
        self.folder = place / "run"
        self._place = place
        self._sizes = sizes
        self._seed = seed
        place.mkdir(parents=True)
        file = written(place / "run.toml", tables(self.folder, name, sizes, seed=seed, steps=steps))
        self._process = self._started("train", "train", str(file))

    def is_over(self) -> bool:
        return self._process.poll() is not None

    def is_through(self) -> bool:
        return self._process.returncode == 0

    def has_begun(self) -> bool:
        """Whether there is anything to be told of it."""
        return (self.folder / "journal").exists()

    def tell_to_stop(self) -> None:
        self._process.send_signal(signal.SIGINT)

    def end(self, until: float) -> None:
        """Nobody is left of it: who is not over by then is told once more, and killed."""
        ended(self._process, self.folder, max(0.0, until - time.monotonic()))
        Left(self._place).gone(self.folder, leave_s=LOOK_S)

    def evaluate(self) -> subprocess.Popen[bytes]:
        """Its newest weights are measured on the held-out tasks, in a process of its own."""
        held_out = source(self._sizes, HELD_OUT, self._sizes.held_out)
        at_once = str(self._sizes.held_out)
        return self._started(
            *("evaluate", "evaluate", str(self.folder), held_out),
            *("--n", "1", "--concurrency", at_once),
        )

    def sample(self) -> dict[str, Any]:
        found = sample(self.folder, seed=self._seed)
        return {"status": self._process.returncode, **found}

    def _started(self, log: str, *words: str) -> subprocess.Popen[bytes]:
        with (self._place / f"{log}.log").open("wb") as said:
            command = [sys.executable, "-m", "gyre", *words]
            env = {**os.environ, SHARE_VARIABLE: str(self._sizes.percent)}
            return subprocess.Popen(command, cwd=results.ROOT, env=env, stdout=said, stderr=said)


def main() -> None:
    asked = _asked()
    sizes = _sized(ON_A_CPU if asked.cpu else Sizes(), asked.size)
    end_when_told()
    before = os.getloadavg()[0]
    with together() if sizes.device == "cuda" else nullcontext(False) as shares:
        samples = {name: [one] for name, one in _samples(asked, sizes).items()}
    for (one,) in samples.values():
        one["window_steps"] = min(len(other["scores"]) for (other,) in samples.values())
    if asked.dry:
        print(json.dumps(samples))
    else:
        path = results.write(
            "gpu-learn" if sizes.device == "cuda" else "cpu-learn",
            samples=samples,
            settings={**asdict(sizes), "steps": asked.steps, "shares_by_mps": shares},
            packages={"gyre": {one: version(one) for one in PACKAGES}},
            load_average=(before, os.getloadavg()[0]),
            device=_device(sizes.device),
            commit=asked.commit,
        )
        print(path)
    for name, (one,) in samples.items():
        print(told(name, one))


def _asked() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--budgets", nargs="+", choices=list(BUDGETS), default=list(BUDGETS))
    parser.add_argument("--cpu", action="store_true", help="smaller runs, one by one")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--seconds", type=float, default=290.0, help="then runs are told to stop")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--size", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--kept", type=Path, help="samples are added here, and not made again")
    parser.add_argument("--journals", type=Path, help="journals and logs are copied here")
    parser.add_argument("--commit", help="of the sources, where there is no repository to ask")
    parser.add_argument("--dry", action="store_true", help="print the samples, write no result")
    return parser.parse_args()


def told(name: str, one: Mapping[str, Any]) -> str:
    """A run in a line."""
    scored = [found for found in one["held_out"] if found["mean"] is not None]
    rounds = ", ".join(f"{found['mean']:.3f} at {found['version']}" for found in scored)
    times = [later - sooner for sooner, later in pairwise(one["made_at_s"])]
    pace = f"one in {median(times):.1f} s" if times else "no pace"
    scores = " ".join(f"{score:.2f}" for score in one["scores"])
    return f"{name}: {len(one['scores'])} steps, {pace}; held out {rounds or 'none'}; {scores}"


def _samples(asked: argparse.Namespace, sizes: Sizes) -> dict[str, dict[str, Any]]:
    """By budget: what its run came to; one that never began is left out."""
    about = {**asdict(sizes), "steps": asked.steps, "seconds": asked.seconds}
    kept = Kept(asked.kept, about)
    found = {name: one for name in asked.budgets if (one := kept.get(name, asked.seed)) is not None}
    left = [name for name in asked.budgets if name not in found]
    for names in [[one] for one in left] if asked.cpu else [left]:
        with tempfile.TemporaryDirectory(
            prefix="learn-", dir=_memory(), ignore_cleanup_errors=True
        ) as folder:
            place = Path(folder)
            runs = [Running(place / name, name, sizes, asked.seed, asked.steps) for name in names]
            try:
                _wait(runs, asked.seconds)
                _measure_last(runs)
            finally:
                for run in runs:
                    run.end(time.monotonic())
                if asked.journals is not None:
                    _keep(place, asked.journals)
            for run in runs:
                if run.has_begun():
                    found[run.name] = run.sample()
                    # One that took no step is tried again by the next call.
                    if found[run.name]["scores"]:
                        kept.add(found[run.name], run.name, asked.seed)
    return found


def _sized(sizes: Sizes, given: Sequence[str]) -> Sizes:
    kinds = {one.name: type(one.default) for one in fields(Sizes)}
    values = dict(one.split("=", 1) for one in given)
    return replace(sizes, **{name: kinds[name](value) for name, value in values.items()})


def _wait(runs: Sequence[Running], seconds: float) -> None:
    """All are over, by themselves or because their time was."""
    until = time.monotonic() + seconds
    while not all(run.is_over() for run in runs) and time.monotonic() < until:
        time.sleep(LOOK_S)
    late = [run for run in runs if not run.is_over()]
    for run in late:
        print(f"{run.name}: told to stop", flush=True)
        run.tell_to_stop()
    for run in runs:
        run.end(until + STOP_S)


def _measure_last(runs: Sequence[Running]) -> None:
    """The last weights of those that were stopped before they could be measured."""
    late = [run for run in runs if run.has_begun() and not run.is_through()]
    open_ = [(run, run.evaluate()) for run in late]
    until = time.monotonic() + EVALUATE_S
    for run, process in open_:
        ended(process, run.folder, max(0.0, until - time.monotonic()))


def _keep(folder: Path, to: Path) -> None:
    for run in sorted(folder.iterdir()):
        (to / run.name).mkdir(parents=True, exist_ok=True)
        for path in (*run.glob("*.log"), run / "run.toml", run / "run" / "journal"):
            if path.exists():
                shutil.copy(path, to / run.name / path.name)


def _memory() -> str | None:
    """A folder in memory where there is room, because a run writes all that it publishes."""
    place = Path("/dev/shm")
    has_room = place.is_dir() and shutil.disk_usage(place).free >= MEMORY_BYTES
    return str(place) if has_room else None


def _device(device: str) -> str | None:
    if device == "cpu":
        return None
    import torch

    return torch.cuda.get_device_name()


if __name__ == "__main__":
    main()
