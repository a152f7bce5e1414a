"""What a run against real engines found, written beside the other results."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.covered import digest
from benchmarks.peers import results

versions = results.versions
ENGINES = {
    "engines": ("vllm", "sglang"),
    "cell-engines": ("vllm", "sglang", "sglang-0.5.18"),
    "cell-runs": ("vllm", "sglang"),
}
"""Of each result the releases: asked through the proxy's adapters, as cells do, and by a run."""
GROUPS = {
    "test_real_engines.py": "engines",
    "test_cell_engines.py": "cell-engines",
    "test_training.py": "cell-runs",
}
"""The result that the promises of a file go to."""


def digest_of(name: str) -> str:
    """Sixteen hex digits that change with whatever a result of this name depends on."""
    return digest("engines" if name == "engines" else "cell-engines")


def write(
    name: str,
    samples: Mapping[str, Mapping[str, Any]],
    packages: Mapping[str, Mapping[str, str]],
    load_average: tuple[float, float],
) -> Path:
    """A new result file that covers the adapters as they are now."""
    return results.write(
        name,
        samples={engine: [dict(found)] for engine, found in samples.items()},
        settings={"device": "cpu", "adapters": digest_of(name)},
        packages=packages,
        load_average=load_average,
    )
