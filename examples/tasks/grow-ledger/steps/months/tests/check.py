"""Sums by month, and everything as it was without one."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from grading import grade, python, text

MARCH = "food -0.30\nrent -975.50\nsalary 2400.00\n"
ALL = "food -110.55\ngifts -25.00\nrent -2875.50\nsalary 4800.00\n"
FEBRUARY = "food -48.90\ngifts -25.00\nrent -950.00\n"
grade(
    [
        python("ledger.py", "ledger.csv", "--month", "2025-03") == (0, MARCH),
        python("ledger.py", "ledger.csv", "--month", "2025-02") == (0, FEBRUARY),
        python("ledger.py", "ledger.csv", "--month", "1999-01") == (0, ""),
        text("march.txt") == MARCH,
    ],
    keeps=[python("ledger.py", "ledger.csv") == (0, ALL)],
)
