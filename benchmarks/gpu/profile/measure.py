"""Profiles decoding and training on one GPU: python -m benchmarks.gpu.profile.measure.

With --kept every sample is in that file as it comes, and what a call before has measured whole is
not measured again.
"""

import argparse
import gc
import os
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from benchmarks.gpu.clock import ceilings
from benchmarks.gpu.moves.sizes import SIZES
from benchmarks.gpu.networks import qwen3
from benchmarks.gpu.profile import decode, training
from benchmarks.live.running import Kept
from benchmarks.peers import results

from gyre.model.hf_config import describe
from gyre.model.loader import new_network
from gyre.model.network import Network

Samples = Iterator[tuple[str, dict[str, Any]]]
SETTINGS = {
    "model": "Qwen3-0.6B's size, or SmolLM2-135M's where 0.13B is said; random weights, bf16",
    "host": "seconds of a pass inside each function, those it calls included",
    "device": "seconds of a pass, or of a step, by what kernels do",
}
NAMES = ("decode", "small", "training")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help=f"of {', '.join(NAMES)}; all by default")
    parser.add_argument("--kept", type=Path, help="samples are added here, and not made again")
    parser.add_argument("--commit", help="of the sources, where there is no repository to ask")
    asked = parser.parse_args()
    if unknown := sorted({*asked.names} - {*NAMES}):
        parser.error(f"{', '.join(unknown)}: expected {' or '.join(NAMES)}")
    samples: dict[str, list[dict[str, Any]]] = defaultdict(list)
    before = os.getloadavg()[0]
    kept = Kept(asked.kept)
    ((_, found),) = _measured(kept, "device", lambda: iter([("device", ceilings())]))
    samples["device"].append(found)
    measures: dict[str, Callable[[], Samples]] = {
        "decode": lambda: decode.measure(Network(qwen3()), found["copy_bytes_per_s"]),
        "small": lambda: decode.measure(_small(), found["copy_bytes_per_s"], decode.SMALL_SCENES),
        "training": lambda: training.measure(Network(qwen3())),
    }
    for name in asked.names or measures:
        try:
            for what, sample in _measured(kept, name, measures[name]):
                samples[what].append(sample)
                _print(what, sample)
        except Exception:
            # The others are measured all the same: time on a device is dear.
            traceback.print_exc(limit=-6)
        gc.collect()
        torch.cuda.empty_cache()
    path = results.write(
        "gpu-profile",
        samples=samples,
        settings=SETTINGS,
        packages={"gyre": {one: version(one) for one in ("torch", "transformers")}},
        load_average=(before, os.getloadavg()[0]),
        device=torch.cuda.get_device_name(),
        commit=asked.commit,
    )
    print(f"wrote {path.name}", flush=True)


def _measured(kept: Kept, name: str, measure: Callable[[], Samples]) -> Samples:
    """What was measured of this before, or else is measured now and kept as it comes."""
    part = kept.part(name)
    before = part.samples()
    if before is not None:
        yield from before
        return
    for what, sample in measure():
        part.add(what, sample)
        yield what, sample
    part.end()


def _small() -> Network:
    found = describe(SIZES["0.13B"], where="0.13B")
    return new_network(found, seed=0, device=torch.device("cuda"), dtype=torch.bfloat16)


def _print(what: str, sample: dict[str, Any]) -> None:
    short = {key: value for key, value in sample.items() if not isinstance(value, list)}
    print(what, {key: _rounded(value) for key, value in short.items()}, flush=True)


def _rounded(value: Any) -> Any:
    return float(f"{value:.4g}") if isinstance(value, float) else value


if __name__ == "__main__":
    main()
