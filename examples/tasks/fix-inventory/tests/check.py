"""A small program of two files with three faults."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from grading import WORKSPACE, grade, python


def session(*commands):
    """Status and output of each command, with a stock that begins empty."""
    (WORKSPACE / "stock.json").unlink(missing_ok=True)
    return [python("inventory.py", *command.split()) for command in commands]


plain = session("add nut 3", "take nut 1", "show", "wave")
adds = session("add nut 3", "add nut 4", "show")
order = session("add pear 1", "add apple 2", "add fig 3", "take fig 3", "show")
short = session("add nut 2", "take nut 3", "show")
absent = session("take nut 1")
grade(
    [
        adds[-1] == (0, "nut 7\n"),
        order[-1][1].splitlines()[:1] == ["apple 2"],
        "fig" not in order[-1][1] and order[-1][0] == 0 and "pear 1" in order[-1][1],
        short[1] == (1, "not enough nut\n"),
        short[2] == (0, "nut 2\n"),
        absent[0] == (1, "not enough nut\n"),
    ],
    keeps=[plain[2] == (0, "nut 2\n"), plain[3] == (2, "expected add, take or show\n")],
)
