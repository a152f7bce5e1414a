"""What a run against real engines found, written beside the other results."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.peers import results

ROOT = Path(__file__).parents[3]
NAME = "engines"
versions = results.versions
ENGINES = ("vllm", "sglang")
ADAPTERS = ROOT / "src" / "gyre" / "backends" / "engines"


NOT_COVERED = {"embedded.py", "gyre.py"}
"""Adapters that no real engine is asked through."""


def adapters_digest(folder: Path = ADAPTERS) -> str:
    """Sixteen hex digits that change with any adapter file of real engines."""
    digest = hashlib.sha256()
    for path in sorted(path for path in folder.glob("*.py") if path.name not in NOT_COVERED):
        digest.update(path.name.encode() + b"\0" + hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:16]


def newest(folder: Path = results.RESULTS) -> dict[str, Any] | None:
    """The latest result of a run against real engines; None when there is none."""
    found = [json.loads(path.read_text()) for path in folder.glob("*.json")]
    ours = [result for result in found if result["name"] == NAME]
    return max(ours, key=lambda result: str(result["at"]), default=None)


def write(
    samples: Mapping[str, Mapping[str, Any]],
    packages: Mapping[str, Mapping[str, str]],
    load_average: tuple[float, float],
) -> Path:
    """A new result file that covers the adapters as they are now."""
    return results.write(
        NAME,
        samples={engine: [dict(found)] for engine, found in samples.items()},
        settings={"device": "cpu", "adapters": adapters_digest()},
        packages=packages,
        load_average=load_average,
    )
