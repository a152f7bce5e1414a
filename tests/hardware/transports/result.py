"""What a run over real Mooncake found, written beside the other results."""

import sys
from collections.abc import Mapping
from pathlib import Path

from benchmarks.covered import digest
from benchmarks.peers import results
from tests.hand_run_results import by_name

NAME = "mooncake"
PACKAGES = ["mooncake-transfer-engine-non-cuda", "numpy", "torch"]


def covered_digest() -> str:
    """Changes with whatever moves bytes over Mooncake."""
    return digest("transports")


def write(seconds: Mapping[str, float], load_average: tuple[float, float]) -> Path:
    """A new result file, of what moves bytes as it is now."""
    return results.write(
        NAME,
        samples={NAME: [{"promises": by_name(seconds)}]},
        settings={"protocol": "tcp", "device": "cpu", "covered": covered_digest()},
        packages=results.versions({NAME: (Path(sys.executable), PACKAGES)}),
        load_average=load_average,
    )
