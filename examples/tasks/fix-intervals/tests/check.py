"""Intervals that are not merged."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from grading import calls, gave, grade, python

found = calls(
    "intervals",
    ("merge", [[[1, 2], [4, 5]]]), ("merge", [[[1, 3], [2, 6], [8, 9]]]), ("merge", [[]]),
    ("merge", [[[5, 6], [1, 2], [2, 4]]]), ("merge", [[[1, 10], [2, 3]]]),
    ("merge", [[[4, 8], [1, 20], [2, 3]]]), ("merge", [[[3, 1]]]),
    ("gaps", [[[8, 9], [1, 3], [2, 6]]]), ("gaps", [[[1, 2]]]),
)
same = python("-c", "import intervals; a = [[1, 3], [2, 6]]; intervals.merge(a); print(a)")
grade(
    [
        *gave(found[3:6], [[1, 4], [5, 6]], [[1, 10]], [[1, 20]]),
        found[6] == ("raised", "ValueError"),
        *gave(found[7:], [[6, 8]], []),
        same == (0, "[[1, 3], [2, 6]]\n"),
    ],
    keeps=gave(found[:3], [[1, 2], [4, 5]], [[1, 6], [8, 9]], []),
)
