"""A cache that forgets the wrong things."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from grading import grade, python


def after(size, *steps):
    """What a cache says after some steps."""
    code = f"from cache import Cache\nc = Cache({size})\n" + "\n".join(steps)
    return python("-c", code)


ABC = ("c.put('a', 1)", "c.put('b', 2)", "c.put('c', 3)")
bad = after(0, "print(1)")
grade(
    [
        after(3, *ABC, "c.get('a')", "print(c.keys())") == (0, "['b', 'c', 'a']\n"),
        after(2, *ABC[:2], "c.get('a')", "c.put('d', 4)", "print(c.get('a'), c.get('b'))") == (0, "1 None\n"),
        after(2, *ABC[:2], "c.put('a', 5)", "print(len(c), c.keys())") == (0, "2 ['b', 'a']\n"),
        after(2, "c.put('x', 0)", "print(c.get('x', 9))") == (0, "0\n"),
        after(2, "c.put('x', None)", "print(c.get('x', 9))") == (0, "None\n"),
        bad[0] not in (0, None) and bad[1] == "",
        after(1, *ABC, "print(c.keys())") == (0, "['c']\n") and after(2, "c.put('z', 1)", "c.put('y', 1)", "print(c.keys())") == (0, "['z', 'y']\n"),
    ],
    keeps=[
        after(3, *ABC, "print(len(c), c.get('b'), c.get('q', 7))") == (0, "3 2 7\n"),
    ],
)
