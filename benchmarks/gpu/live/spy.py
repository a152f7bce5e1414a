"""One live run under elastic whose cells are looked into: where their CPU goes.

    python -m benchmarks.gpu.live.spy FOLDER

It is as long as those of the comparison are, a little slower, and no result. Of each cell the
folder has a file of stacks, and a table of where most of the CPU went is printed.
"""

import argparse
import subprocess
from pathlib import Path

from benchmarks.gpu.live import runs
from benchmarks.gpu.live.campaign import SETTINGS, Campaign
from benchmarks.gpu.live.compare import quarters, scale_setting
from benchmarks.gpu.live.spied import table
from benchmarks.live.running import Kept, end_when_told


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("place", type=Path)
    parser.add_argument("--device", choices=tuple(SETTINGS), default="cuda")
    parser.add_argument("--steps", type=int, default=runs.STEPS)
    parser.add_argument("--longest", type=float, default=240.0, help="a run is stopped after, s")
    parser.add_argument("--scale", type=scale_setting, nargs="+", default=())
    parser.add_argument("--like", type=Path, help="a folder of compare, for the scale it has found")
    asked = parser.parse_args()
    end_when_told()
    place = asked.place.absolute()
    place.mkdir(parents=True, exist_ok=True)
    scale = dict(asked.scale) or _scale_of(asked.like)
    with quarters(place):
        campaign = Campaign(
            place,
            asked.device,
            steps=asked.steps,
            longest_s=asked.longest,
            scale=scale,
            spies=True,
        )
        ran = campaign.measure("elastic", 0)
    print(campaign.measured("elastic", 0), flush=True)
    found = sorted(campaign.spied("elastic", 0).glob("*.jsonl"))
    for path in found:
        print("\n".join(table(path)), flush=True)
    if not ran or not found:
        raise subprocess.CalledProcessError(1, "a run that is looked into")


def _scale_of(folder: Path | None) -> dict[str, float]:
    """What a pilot has found there; none where there was no pilot."""
    if folder is None or not (folder / "samples.jsonl").exists():
        return {}
    return Kept.found(folder / "samples.jsonl").get(("scale",), {})


if __name__ == "__main__":
    main()
