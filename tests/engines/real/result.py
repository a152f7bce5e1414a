"""What a run against real engines found, written beside the other results."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.peers import results

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
    digest = hashlib.sha256()
    for path in sorted(path for path in folder.glob("*.py") if path.name not in others):
        digest.update(path.name.encode() + b"\0" + hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:16]


def newest(name: str, folder: Path = results.RESULTS) -> dict[str, Any] | None:
    """The latest result of this name; None when there is none."""
    found = [json.loads(path.read_text()) for path in folder.glob("*.json")]
    ours = [result for result in found if result["name"] == name]
    return max(ours, key=lambda result: str(result["at"]), default=None)


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
