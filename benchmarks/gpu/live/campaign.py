"""All runs of a comparison, and what was foretold of them, kept as they come."""

import gzip
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.gpu.live import clocks, measured, pilot, runs
from benchmarks.gpu.live.predict import Calibration, calibrated, foretold, variants
from benchmarks.gpu.live.runs import Machine, Size
from benchmarks.gpu.live.work import CONTEXT, Scale
from benchmarks.live.running import Kept, Ran

from gyre.simulator.workload import HOUR_S
from gyre.simulator.world import run as simulate
from gyre.types.errors import ConfigError

FOUND = {"tokens_per_s", "told_fraction"}
"""What a pilot is for."""
PILOT_SEED = 1000
"""No other run has it."""
PILOT_S = 4.0
"""Mean of an execution of the pilot."""
PILOT_STEPS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What the runs of one kind of device are like."""

    model: str
    """The name of its size."""
    size: Size
    scale: Scale
    """As it is before a pilot."""
    machine: Mapping[str, Any]
    """As runs are told."""


SETTINGS = {
    # An eighth of the paper's batch of 32 groups of 16, with an eighth of its 1,152 slots; of
    # groups, which are waited for, there are half as many.
    "cuda": Setting(
        model="0.12B",
        size=Size(batch=16, group=4, capacity=36),
        scale=Scale(mean_s=6.0, tokens_per_s=250.0, turn_s=1.0, told_fraction=1.5),
        machine={
            "transport": "cuda",
            "kv_s": 2.0,
            "kv_tokens": 524_288,
            "pack_tokens": 8_192,
            "shards": 4,
        },
    ),
    "cpu": Setting(
        model="small",
        size=Size(batch=4, group=2, capacity=5),
        scale=Scale(mean_s=6.0, tokens_per_s=20.0, turn_s=2.0, told_fraction=0.8),
        machine={
            "transport": "shared",
            "kv_s": 0.0,
            "kv_tokens": 32_768,
            "pack_tokens": 512,
            "shards": 1,
        },
    ),
}


class Campaign:
    """One device's runs in one folder; what was measured there before is not measured again."""

    def __init__(
        self,
        place: Path,
        device: str,
        *,
        steps: int,
        longest_s: float,
        scale: Mapping[str, float],
        spies: bool = False,
    ) -> None:
        """`scale` is put over the device's own, and over what a pilot finds.

        A run begins when nobody is left of the one before; with `spies` its cells write down what
        their threads are at.
        """
        self._place = place
        self._kept = Kept(place / "samples.jsonl", {"device": device, "steps": steps})
        self._longest_s = longest_s
        self._given = dict(scale)
        self._spies = spies
        self.setting = SETTINGS[device]
        self.size = self.setting.size
        self.steps = steps
        self.machine = Machine(
            model=place / f"model-{self.setting.model}", device=device, **self.setting.machine
        )

    @property
    def scale(self) -> Scale:
        """By the pilot, unless what it finds is given; the same for all runs in the folder."""
        kept = self._kept.get("scale")
        scale = replace(self.setting.scale, **self._given)
        if kept is None:
            if FOUND - self._given.keys():
                sizes = {"capacity": self.size.capacity, "context": CONTEXT}
                pace = self.pilot or self._pilot()
                scale = replace(pilot.scaled(scale, pace, **sizes), **self._given)
            kept = self._kept.add(asdict(scale), "scale")
        changed = {key: value for key, value in self._given.items() if kept[key] != value}
        if changed:
            message = f"{self._place}: runs there have {kept}, expected none or {changed}"
            raise ConfigError(message)
        return Scale(**kept)

    def _pilot(self) -> dict[str, Any]:
        """What the first run of all comes to; raises CalledProcessError if it does not end well."""
        scale = replace(self.setting.scale, **{**self._given, "mean_s": PILOT_S})
        ran = self._live("elastic", scale, seed=PILOT_SEED, steps=PILOT_STEPS)
        sample = measured.sample(ran, self._folder("elastic", PILOT_SEED) / "run")
        return self._kept.add(sample, "pilot")

    @property
    def pilot(self) -> dict[str, Any] | None:
        """None where none was needed."""
        return self._kept.get("pilot")

    def measured(self, name: str, seed: int) -> dict[str, Any] | None:
        """What a run came to, if there was one."""
        return self._kept.get(name, seed)

    def measure(self, name: str, seed: int, *, training: int = runs.CELLS) -> bool:
        """One live run, or a word on why there is none; the others are measured all the same.

        On the first under elastic the simulator is calibrated. False if it did not end well.
        """
        with suppress(subprocess.CalledProcessError):
            scale = self.scale
            with clocks.watched() as seen:
                ran = self._live(name, scale, seed=seed, steps=self.steps, training=training)
            self._pack(name, seed)
            if name == "elastic" and self.calibration is None:
                self._kept.add(asdict(calibrated(ran, scale, seed=seed)), "calibration")
            sample = measured.sample(ran, self._folder(name, seed) / "run")
            self._kept.add({**sample, **seen}, name, seed)
            return True
        return False

    @property
    def calibration(self) -> Calibration | None:
        """None until a run under elastic has ended well."""
        found = self._kept.get("calibration")
        return None if found is None else Calibration(**found)

    def simulated(self, found: Calibration, seeds: Sequence[int]) -> dict[str, list[float]]:
        """Seconds of every variant, seed by seed."""
        scale = self.scale
        return {
            name: [
                HOUR_S
                * simulate(foretold(found, scale, schedule=schedule, cells=cells, seed=seed)).hours
                for seed in seeds
            ]
            for name, schedule, cells in variants(self.size, steps=self.steps)
        }

    def _live(
        self, name: str, scale: Scale, *, seed: int, steps: int, training: int = runs.CELLS
    ) -> Ran:
        if not self.machine.model.exists():
            self._make()
        return runs.live(
            self._folder(name, seed),
            name,
            self.machine,
            self.size,
            scale,
            seed=seed,
            steps=steps,
            training=training,
            within_s=self._longest_s,
            spied=self.spied(name, seed) if self._spies else None,
        )

    def spied(self, name: str, seed: int) -> Path:
        """Where cells of a run write down what their threads were at."""
        return self._folder(name, seed) / "spied"

    def _make(self) -> None:
        """In a process that leaves the device after it."""
        module = [sys.executable, "-m", "benchmarks.gpu.live.model"]
        what = [str(self.machine.model), self.setting.model, self.machine.device]
        subprocess.run([*module, *what], check=True)

    def _pack(self, name: str, seed: int) -> None:
        """The journal of a run stays when all else of it is gone."""
        folder = self._folder(name, seed)
        packed = self._place / "journals" / f"{folder.name}.gz"
        packed.parent.mkdir(exist_ok=True)
        packed.write_bytes(gzip.compress((folder / "run" / "journal").read_bytes()))

    def _folder(self, name: str, seed: int) -> Path:
        return self._place / f"{name}-{seed}"
