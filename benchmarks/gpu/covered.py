"""Which sources the results on a GPU depend on, so that a test can say when they are stale."""

import hashlib
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = ("src/gyre/model", "src/gyre/engine", "src/gyre/train", "benchmarks/gpu")
NOT_MEASURED = {
    "src/gyre/engine/serve.py",
}
"""Modules of these rooms that no result on a GPU passes through."""


def digest(root: Path = ROOT) -> str:
    """Sixteen hex digits that change with any source that was measured."""
    found = hashlib.sha256()
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*.py")):
            name = str(path.relative_to(root))
            if name not in NOT_MEASURED:
                found.update(name.encode() + b"\0" + hashlib.sha256(path.read_bytes()).digest())
    return found.hexdigest()[:16]
