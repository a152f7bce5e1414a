"""What a run over real Mooncake found, written beside the other results."""

import sys
from collections.abc import Mapping
from pathlib import Path

from benchmarks.peers import results
from tests.promises import ROOT, by_name, digest_of

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
    """Changes with whatever moves bytes over Mooncake."""
    found = {path for pattern in COVERED for path in root.glob(pattern)}
    return digest_of(one for one in found if one.name not in NOT_COVERED)


def write(seconds: Mapping[str, float], load_average: tuple[float, float]) -> Path:
    """A new result file, of what moves bytes as it is now."""
    return results.write(
        NAME,
        samples={NAME: [{"promises": by_name(seconds)}]},
        settings={"protocol": "tcp", "device": "cpu", "covered": covered_digest()},
        packages=results.versions({NAME: (Path(sys.executable), PACKAGES)}),
        load_average=load_average,
    )
