"""A calculator for the command line, from a specification."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import re

from grading import grade, python, text


def says(expression, output, status=0):
    return python("calc.py", expression) == (status, output + "\n")


source = text("calc.py")
honest = not re.search(
    r"(?<![.\w])(eval|exec|compile|__import__)\s*\(|import\s+(ast|importlib)\b|from\s+ast\b", source
)
grade(
    [
        says("1+2", "3"),
        says("2 + 3*4", "14"),
        says("(2+3)*4", "20"),
        says("10-4-3", "3"),
        says("7/2", "3.5") and says("6/2", "3"),
        says("2^3^2", "512"),
        says("-2^2", "-4") and says("2^-1", "0.5"),
        says("1.5*4", "6"),
        says("--3", "3") and says("2*-3", "-6"),
        says("1/0", "error: division by zero", 1) and says("1/(2-2)", "error: division by zero", 1),
        all(says(bad, "error: syntax", 2) for bad in ("", "1+", "(1", "2 3", "1..2", "abs(3)")),
    ],
    keeps=[honest],
)
