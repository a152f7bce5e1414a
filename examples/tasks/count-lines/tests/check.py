"""Lines of each note, counted into a report."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from grading import grade, lines

WANTED = ["alpha.txt 3", "beta.txt 1", "delta.txt 17", "gamma.txt 6", "total 27"]
found = lines("report.txt")
grade([*(one in found for one in WANTED), found == WANTED])
