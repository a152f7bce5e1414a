"""A table sorted by two columns."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from grading import grade, lines

WANTED = ["name,score", "ida,100", "ann,25", "bo,25", "mara,17", "zeb,17", "kim,9", "ole,4"]
found = lines("ranking.csv")
grade([
    found[:1] == WANTED[:1],
    sorted(found) == sorted(WANTED),
    found[1:2] == WANTED[1:2],
    found == WANTED,
    lines("winner.txt") == ["ida"],
])
