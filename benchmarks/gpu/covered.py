"""Which sources the results on a GPU depend on, so that a test can say when they are stale."""

from pathlib import Path

from benchmarks import covered

ROOT = Path(__file__).parents[2]


def digest(root: Path = ROOT) -> str:
    """Sixteen hex digits that change with any symbol that was measured."""
    return covered.digest("gpu", root)
