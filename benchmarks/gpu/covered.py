"""Which sources the results on a GPU depend on, so that a test can say when they are stale."""

import hashlib
from pathlib import Path

ROOT = Path(__file__).parents[2]
PATTERNS = (
    *("src/gyre/model/**/*.py", "src/gyre/engine/**/*.py", "src/gyre/train/**/*.py"),
    "benchmarks/gpu/*.py",
)
"""Folders of the benchmarks measure whole runs, and each has results of its own."""
NOT_MEASURED = {
    *(
        f"src/gyre/engine/{name}.py"
        for name in (
            "attention",
            "carried",
            "completions",
            "controls",
            "ferry",
            "joined",
            "native",
            "open",
            "plain",
            "serve",
            "told",
            "wire",
        )
    ),
    *(
        f"src/gyre/train/{name}.py"
        for name in (
            "holdings",
            "lines",
            "messages",
            "parallel",
            "pipeline",
            "rank",
            "release",
            "schedule",
            "stages",
        )
    ),
    *(
        f"src/gyre/model/{name}.py"
        for name in ("checkpoint", "description", "gguf", "known", "load", "manifest", "smollm2")
    ),
}
"""Modules of these rooms that no result on a GPU passes through."""


def digest(root: Path = ROOT) -> str:
    """Sixteen hex digits that change with any source that was measured."""
    found = hashlib.sha256()
    for pattern in PATTERNS:
        for path in sorted(root.glob(pattern)):
            name = str(path.relative_to(root))
            if name not in NOT_MEASURED:
                found.update(name.encode() + b"\0" + hashlib.sha256(path.read_bytes()).digest())
    return found.hexdigest()[:16]
