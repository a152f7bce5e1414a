"""A template filled with values from a file."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from grading import grade, lines

WANTED = [
    "Dear Nora & Sons,",
    "your order A/117 of 2024-02-29 goes to Hill Road 5.",
    "Formula: e=mc^2. Code: \\1\\n",
    "Thank you, Nora & Sons! (unknown)",
]
found = lines("out.txt")
grade([found[n : n + 1] == WANTED[n : n + 1] for n in range(4)])
