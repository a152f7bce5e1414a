"""A binary search that misses its ends."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from grading import calls, gave, grade, python

found = calls(
    "search",
    ("find", [[1, 3, 5], 3]), ("find", [[1, 3, 5], 4]),
    ("find", [[1, 3, 5], 5]), ("find", [[1, 3, 5], 1]), ("find", [[2], 2]), ("find", [[7, 7, 7, 7], 7]),
    ("find", [[1, 2, 2, 2, 3], 2]), ("find", [[], 1]),
)
large = python("-c", "import search; print(search.find(range(0, 10**12, 2), 999999999998))")
grade(
    [*gave(found[2:7], 2, 0, 0, 0, 1), large == (0, "499999999999\n")],
    keeps=[*gave(found[:2], 1, None), *gave(found[7:], None)],
)
