"""Files with equal contents, in groups."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from grading import grade, lines

WANTED = ["inbox/a.txt inbox/sub/b.txt inbox/sub/deep/d.txt", "inbox/e.bin inbox/sub/f.bin"]
found = lines("duplicates.txt")
grade([
    WANTED[0] in found,
    WANTED[1] in found,
    found == WANTED,
    lines("saved.txt") == ["29"],
])
