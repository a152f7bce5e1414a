"""Sums by account, to the cent."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from grading import WORKSPACE, grade, python


def summed(*rows):
    """What the agent's program prints for a file of these lines."""
    (WORKSPACE / "asked.csv").write_text("".join(f"{row}\n" for row in rows))
    return python("ledger.py", "asked.csv")


grade([
    python("ledger.py", "ledger.csv")
    == (0, "food -110.25\ngifts -25.00\nrent -1900.00\nsalary 2400.00\n"),
    summed("2025-01-01,a,1.00") == (0, "a 1.00\n"),
    summed("2025-01-01,b,1.00", "2025-01-01,a,2.50") == (0, "a 2.50\nb 1.00\n"),
    summed(*["2025-01-01,a,90071992547409.91"] * 10) == (0, "a 900719925474099.10\n"),
    summed("2025-01-01,a,1.00", "", "2025-01-02,a,-1.00") == (0, "a 0.00\n"),
    python("ledger.py") == (2, "usage: ledger.py FILE\n"),
])
