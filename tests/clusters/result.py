"""What a run over real nodes found, written beside the other results."""

import hashlib
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.peers import results

ROOT = Path(__file__).parents[2]
NAME = "cluster"
COVERED = (
    "src/gyre/backends/clusters/*.py",
    "src/gyre/run/births.py",
    "src/gyre/run/nurseries.py",
    "src/gyre/run/nursery.py",
)


def covered_digest(root: Path = ROOT) -> str:
    """Sixteen hex digits that change with whatever starts processes on a node."""
    digest = hashlib.sha256()
    for path in sorted(path for pattern in COVERED for path in root.glob(pattern)):
        digest.update(path.name.encode() + b"\0" + hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:16]


def newest(folder: Path = results.RESULTS) -> dict[str, Any] | None:
    """The latest result of a run over real nodes; None when there is none."""
    found = [json.loads(path.read_text()) for path in folder.glob("*.json")]
    ours = [one for one in found if one["name"] == NAME]
    return max(ours, key=lambda one: str(one["at"]), default=None)


def write(seconds: Mapping[str, float], load_average: tuple[float, float]) -> Path:
    """A new result file, of what starts processes on a node as it is now."""
    promises = {name.rpartition("::")[2]: round(spent, 1) for name, spent in seconds.items()}
    python = {NAME: (Path(sys.executable), ["ray", "grpcio", "torch"])}
    return results.write(
        NAME,
        samples={NAME: [{"promises": promises}]},
        settings={"nodes": 3, "device": "cpu", "covered": covered_digest()},
        packages=results.versions(python),
        load_average=load_average,
    )
