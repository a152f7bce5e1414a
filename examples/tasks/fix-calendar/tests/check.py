"""Days between dates, wrong around leap years."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import re

from grading import calls, gave, grade, text

found = calls(
    "calendar_days",
    ("is_leap", [2024]), ("is_leap", [2000]),
    ("is_leap", [1900]), ("is_leap", [2100]), ("days_in", [2023, 1]), ("days_in", [2024, 2]),
    ("days_in", [2024, 12]), ("days_in", [2024, 13]), ("day_of_year", [2024, 12, 31]),
    ("day_of_year", [2023, 2, 1]), ("day_of_year", [2023, 2, 29]),
    ("days_between", [[2024, 1, 1], [2024, 12, 31]]), ("days_between", [[1999, 12, 31], [2001, 1, 1]]),
    ("days_between", [[2024, 3, 1], [2024, 2, 28]]), ("days_between", [[1583, 1, 1], [2024, 6, 15]]),
)
honest = not re.search(r"import\s+(datetime|calendar|time)|from\s+(datetime|calendar|time)\b", text("calendar_days.py"))
grade(
    [
        *gave(found[2:7], False, False, 31, 29, 31),
        found[7] == ("raised", "ValueError"),
        *gave(found[8:10], 366, 32),
        found[10] == ("raised", "ValueError"),
        *gave(found[11:], 365, 367, -2, 161238),
    ],
    keeps=[*gave(found[:2], True, True), honest],
)
