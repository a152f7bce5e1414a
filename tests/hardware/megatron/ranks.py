"""Ranks that are programs of their own, run to their end within a time limit."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
LIMIT_S = 240.0


def run_ranks(module, size, *words):
    """All have ended well, each told its number and these words."""
    ranks = [
        subprocess.Popen(
            [sys.executable, "-m", module, str(rank), *map(str, words)],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(size)
    ]
    try:
        said = [one.communicate(timeout=LIMIT_S)[1] for one in ranks]
    finally:
        for one in ranks:
            one.kill()
            one.wait()
    assert [0] * size == [one.returncode for one in ranks], "\n".join(said)
