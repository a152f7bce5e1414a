"""What a run over real nodes found, written beside the other results."""

import sys
from collections.abc import Mapping
from pathlib import Path

from benchmarks.peers import results
from tests.promises import ROOT, by_name, digest_of

NAME = "cluster"
COVERED = (
    "src/gyre/backends/clusters/*.py",
    "src/gyre/run/births.py",
    "src/gyre/run/nurseries.py",
    "src/gyre/run/nursery.py",
)


def covered_digest(root: Path = ROOT) -> str:
    """Changes with whatever starts processes on a node."""
    return digest_of(path for pattern in COVERED for path in root.glob(pattern))


def write(seconds: Mapping[str, float], load_average: tuple[float, float]) -> Path:
    """A new result file, of what starts processes on a node as it is now."""
    python = {NAME: (Path(sys.executable), ["ray", "grpcio", "torch"])}
    return results.write(
        NAME,
        samples={NAME: [{"promises": by_name(seconds)}]},
        settings={"nodes": 3, "device": "cpu", "covered": covered_digest()},
        packages=results.versions(python),
        load_average=load_average,
    )
