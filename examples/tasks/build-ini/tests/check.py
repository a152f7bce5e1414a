"""A reader and writer of INI files, from a specification."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from grading import calls, gave, grade, python

CASES = [
    ("load", ["[a]\nx = 1\ny: two words\n"]),
    ("load", ["# note\n; other\n\n[a]\nkey=v=w\n[b]\n"]),
    ("load", ["top = 1\n[s]\nx=2"]),
    ("load", ["[a]\nx = one\n  two\n\tthree\ny=1"]),
    ("load", ["[a]\nX=1\n[b]\ny=2\n[a]\nz=3"]),
    ("load", ["[a]\nx=1\nX=2"]),
    ("load", ["[a]\nnonsense"]),
    ("load", [""]),
    ("load", ["[ a ]\nk=\n"]),
]
found = calls("ini", *CASES)
where = python("-c", "import ini\ntry:\n    ini.load('[a]\\n\\nwrong')\nexcept ValueError as e:\n    print(str(e).split(':')[0])")
again = python("-c", """import ini
d = {"": {"t": "1"}, "s": {"a": "x = y", "b": "one\\ntwo", "c": ""}, "e": {}}
print(ini.load(ini.dump(d)) == d, isinstance(ini.dump(d), str))""")
grade([
    *gave(found[:1], {"a": {"x": "1", "y": "two words"}}),
    *gave(found[1:2], {"a": {"key": "v=w"}, "b": {}}),
    *gave(found[2:3], {"": {"top": "1"}, "s": {"x": "2"}}),
    *gave(found[3:4], {"a": {"x": "one\ntwo\nthree", "y": "1"}}),
    *gave(found[4:5], {"a": {"x": "1", "z": "3"}, "b": {"y": "2"}}),
    found[5] == ("raised", "ValueError"),
    found[6] == ("raised", "ValueError") and where == (0, "line 3\n"),
    *gave(found[7:8], {}),
    found[8] in (("gave", {"a": {"k": ""}}), ("gave", {" a ": {"k": ""}})),
    again == (0, "True True\n"),
])
