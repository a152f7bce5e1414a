"""What a run over real Mooncake found, written beside the other results."""

import hashlib
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.peers import results

ROOT = Path(__file__).parents[2]
NAME = "mooncake"
COVERED = (
    "src/gyre/backends/transports/*.py",
    "src/gyre/run/carried_over.py",
    "src/gyre/run/cell_weights.py",
    "src/gyre/run/offering.py",
)
NOT_COVERED = {"tcp.py"}
"""Transports that no read over Mooncake passes through."""
PACKAGES = ["mooncake-transfer-engine-non-cuda", "numpy", "torch"]


def covered_digest(root: Path = ROOT) -> str:
    """Sixteen hex digits that change with whatever moves bytes over Mooncake."""
    digest = hashlib.sha256()
    found = {path for pattern in COVERED for path in root.glob(pattern)}
    for path in sorted(one for one in found if one.name not in NOT_COVERED):
        digest.update(path.name.encode() + b"\0" + hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:16]


def newest(folder: Path = results.RESULTS) -> dict[str, Any]:
    """The latest result of a run over real Mooncake."""
    found = [json.loads(path.read_text()) for path in folder.glob(f"*-{NAME}*.json")]
    return max((one for one in found if one["name"] == NAME), key=lambda one: str(one["at"]))


def write(seconds: Mapping[str, float], load_average: tuple[float, float]) -> Path:
    """A new result file, of what moves bytes as it is now."""
    promises = {name.rpartition("::")[2]: round(spent, 1) for name, spent in seconds.items()}
    return results.write(
        NAME,
        samples={NAME: [{"promises": promises}]},
        settings={"protocol": "tcp", "device": "cpu", "covered": covered_digest()},
        packages=results.versions({NAME: (Path(sys.executable), PACKAGES)}),
        load_average=load_average,
    )
