"""Text set into paragraphs of a width."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import re

from grading import grade, python, text


def wrapped(width, given, wanted):
    return python("wrap.py", str(width), stdin=given) == (0, wanted)


grade(
    [
        wrapped(20, "the quick brown fox jumps over it\n", "the quick brown fox\njumps over it\n"),
        wrapped(20, "one\ntwo\n\n\n\nthree\n", "one two\n\nthree\n"),
        wrapped(20, "\n\n  spread   out\n words\n\n", "spread out words\n"),
        wrapped(10, "exactly 10 signs\n", "exactly 10\nsigns\n"),
        wrapped(10, "a abcdefghijklmno b\n", "a\nabcdefghij\nklmno b\n"),
        wrapped(14, "- first entry is long\n- second\n", "- first entry\n  is long\n- second\n"),
        wrapped(14, "before\n\n- a\n  b\n- c\n\nafter\n", "before\n\n- a b\n- c\n\nafter\n"),
        wrapped(20, "", ""),
        all(python("wrap.py", *given, stdin="x") == (2, "") for given in (["9"], ["ten"], [])),
    ],
    keeps=[
        text("wrap.py") != "",
        not re.search(r"import\s+textwrap|from\s+textwrap\b", text("wrap.py")),
    ],
)
