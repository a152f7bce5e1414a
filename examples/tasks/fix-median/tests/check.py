"""A median that forgets half of the cases."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from grading import calls, gave, grade, python

found = calls(
    "stats",
    ("median", [[3, 1, 2]]),
    ("median", [[5]]),
    ("median", [[4, 1, 3, 2]]),
    ("median", [[1, 2]]),
    ("median", [[-5, 10, 0, 7]]),
    ("median", [[]]),
)
same = python("-c", "import stats; a = [3, 1, 2]; stats.median(a); print(a)")
grade(
    [*gave(found[2:5], 2.5, 1.5, 3.5), found[5] == ("raised", "ValueError"), same == (0, "[3, 1, 2]\n")],
    keeps=gave(found[:2], 2, 5),
)
