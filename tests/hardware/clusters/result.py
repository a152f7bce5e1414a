"""What a run over real nodes found, written beside the other results."""

import sys
from collections.abc import Mapping
from pathlib import Path

from benchmarks.covered import digest
from benchmarks.peers import results
from tests.hand_run_results import by_name

NAME = "cluster"


def covered_digest() -> str:
    """Changes with whatever starts processes on a node."""
    return digest("clusters")


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
