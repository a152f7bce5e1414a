"""Roman numerals with a mistake in each direction."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from grading import calls, gave, grade

found = calls(
    "roman",
    ("to_roman", [3]), ("to_roman", [1666]), ("from_roman", ["XVI"]),
    ("to_roman", [4]), ("to_roman", [1994]), ("to_roman", [3999]),
    ("from_roman", ["IV"]), ("from_roman", ["MCMXCIV"]), ("from_roman", ["CDXLIX"]),
    ("to_roman", [0]), ("to_roman", [4000]), ("from_roman", ["IIII"]), ("from_roman", ["VX"]),
)
refused = [one == ("raised", "ValueError") for one in found[9:]]
grade(
    [*gave(found[3:9], "IV", "MCMXCIV", "MMMCMXCIX", 4, 1994, 449), *refused],
    keeps=gave(found[:3], "III", "MDCLXVI", 16),
)
