"""What a run with a real Megatron-core found, written beside the other results."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.covered import digest
from benchmarks.peers import results
from tests.hand_run_results import by_name

NAME = "megatron"


def covered_digest() -> str:
    """Changes with whatever Megatron's layers compute between."""
    return digest("megatron")


def write(
    seconds: Mapping[str, float],
    load_average: tuple[float, float],
    *,
    device: str,
    accelerator: str | None,
    commit: str | None,
    found: Mapping[str, Any],
) -> Path:
    """A new result file, of the trainer as it is now; `accelerator` is what CUDA calls itself."""
    python = {NAME: (Path(sys.executable), ["megatron-core", "torch", "transformers"])}
    return results.write(
        NAME,
        samples={NAME: [{"promises": by_name(seconds), "found": dict(found)}]},
        settings={"device": device, "covered": covered_digest()},
        packages=results.versions(python),
        load_average=load_average,
        device=accelerator,
        commit=commit,
    )
