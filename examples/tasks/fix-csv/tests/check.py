"""A reader of CSV that splits at every comma."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import re

from grading import calls, gave, grade, text

found = calls(
    "table",
    ("parse", ["a,b\nc,d\n"]), ("parse", ["a,,b"]), ("parse", [""]),
    ("parse", ['"a,b",c']), ("parse", ['"a\nb",c\nd']), ("parse", ['"say ""hi""",x']),
    ("parse", ["a,b\r\nc,d\r\n"]), ("parse", ['"",""\n,']), ("parse", ['"open,a']), ("parse", ['"a"b,c']),
    ("parse", ['"plain",x']),
    ("write", [[["a", "b"], ["c", ""]]]), ("write", [[["a,b", 'q"q'], ["two\nlines", "x"]]]),
)
grade(
    [
        *gave(found[3:6], [["a,b", "c"]], [["a\nb", "c"], ["d"]], [['say "hi"', "x"]]),
        *gave(found[7:8], [["", ""], ["", ""]]),
        found[8] == ("raised", "ValueError"),
        found[9] == ("raised", "ValueError"),
        *gave(found[10:], [["plain", "x"]], "a,b\nc,\n", '"a,b","q""q"\n"two\nlines",x\n'),
    ],
    keeps=[
        *gave(found[:3], [["a", "b"], ["c", "d"]], [["a", "", "b"]], []),
        *gave(found[6:7], [["a", "b"], ["c", "d"]]),
        not re.search(r"import\s+csv|from\s+csv\b|__import__|importlib", text("table.py")),
    ],
)
