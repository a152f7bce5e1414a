"""Loaded by every Python that has this folder on its path: a calendar that jumps when told."""

import os
import time
from pathlib import Path

_WHERE = os.environ.get("GYRE_TEST_JUMP", "")
_real = time.time


def _jumped() -> float:
    """The time and the seconds that stand in the file, if there is one."""
    try:
        return _real() + float(Path(_WHERE).read_text(encoding="ascii"))
    except OSError:
        return _real()


if _WHERE:
    time.time = _jumped
