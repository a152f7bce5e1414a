"""What a run against real engines found, written beside the other results."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.peers import results
from tests.promises import digest_of as digest_of_files

ROOT = Path(__file__).parents[3]
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
ADAPTERS = ROOT / "src" / "gyre" / "backends" / "engines"
NOT_COVERED = {"embedded.py", "gyre.py"}
"""Adapters that no real engine is asked through."""
OF_CELLS = {
    "child.py",
    "guarded.py",
    "launch.py",
    "open_served.py",
    "remote.py",
    "resumed.py",
    "served.py",
    "sglang_group.py",
    "sglang_remote.py",
    "vllm_remote.py",
    "vllm_tokens.py",
    "vllm_weights.py",
}
"""What only an engine of a cell needs."""


def digest_of(name: str, folder: Path = ADAPTERS) -> str:
    """Sixteen hex digits that change with any file that a result of this name depends on."""
    others = NOT_COVERED | (OF_CELLS if name == "engines" else set())
    return digest_of_files(path for path in folder.glob("*.py") if path.name not in others)


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
