"""What a run with a real Megatron-core found, written beside the other results."""

import hashlib
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.peers import results

ROOT = Path(__file__).parents[2]
NAME = "megatron"
COVERED = (
    "src/gyre/backends/trainers/megatron*.py",
    "src/gyre/train/*.py",
    "src/gyre/model/network.py",
)


def covered_digest(root: Path = ROOT) -> str:
    """Sixteen hex digits that change with whatever Megatron's layers compute between."""
    digest = hashlib.sha256()
    for path in sorted(path for pattern in COVERED for path in root.glob(pattern)):
        digest.update(path.name.encode() + b"\0" + hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:16]


def newest(device: str, folder: Path = results.RESULTS) -> dict[str, Any]:
    """The latest result with a real Megatron-core on a CPU, or on CUDA."""
    found = [json.loads(path.read_text()) for path in folder.glob(f"*-{NAME}*.json")]
    ours = [one for one in found if one["name"] == NAME and one["settings"]["device"] == device]
    return max(ours, key=lambda one: str(one["at"]))


def write(
    seconds: Mapping[str, float],
    load_average: tuple[float, float],
    *,
    device: str,
    accelerator: str | None,
    commit: str | None,
    found: Mapping[str, Any],
) -> Path:
    """A new result file, of the trainer as it is now; `accelerator` is what CUDA calls itself."""
    promises = {name.rpartition("::")[2]: round(spent, 1) for name, spent in seconds.items()}
    python = {NAME: (Path(sys.executable), ["megatron-core", "torch", "transformers"])}
    return results.write(
        NAME,
        samples={NAME: [{"promises": promises, "found": dict(found)}]},
        settings={"device": device, "covered": covered_digest()},
        packages=results.versions(python),
        load_average=load_average,
        device=accelerator,
        commit=commit,
    )
