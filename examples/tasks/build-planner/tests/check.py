"""A planner of builds: order, cycles, and what has to be done again."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from grading import calls, gave, grade, python

HOUSE = {"roof": ["walls"], "walls": ["floor", "bricks"], "floor": [], "paint": ["walls"], "door": ["walls", "bricks"]}
found = calls(
    "planner",
    ("order", [HOUSE]), ("needed", [HOUSE, "roof"]), ("stale", [HOUSE, ["bricks"]]), ("layers", [HOUSE]),
    ("order", [{}]), ("needed", [HOUSE, "bricks"]), ("stale", [HOUSE, ["roof", "floor"]]), ("stale", [HOUSE, []]),
    ("needed", [HOUSE, "moat"]), ("stale", [HOUSE, ["moat"]]),
    ("order", [{"a": ["b"], "b": ["a"]}]), ("layers", [{"a": ["a"]}]),
)
circle = python("-c", """import planner
try:
    planner.order({"x": ["c"], "c": ["a"], "a": ["b"], "b": ["c"], "z": []})
except ValueError as error:
    print(error)""")
deep = python("-c", """import planner
plan = {f"n{i:05}": [f"n{i - 1:05}"] for i in range(1, 20000)}
print(planner.order(plan)[-1], len(planner.layers(plan)), len(planner.needed(plan, "n19999")))""")
grade([
    *gave(found[:1], ["bricks", "floor", "walls", "door", "paint", "roof"]),
    *gave(found[1:2], ["bricks", "floor", "walls"]),
    *gave(found[2:3], ["bricks", "walls", "door", "paint", "roof"]),
    *gave(found[3:4], [["bricks", "floor"], ["walls"], ["door", "paint", "roof"]]),
    all(gave(found[4:6], [], [])),
    all(gave(found[6:8], ["floor", "walls", "door", "paint", "roof"], [])),
    found[8] == found[9] == ("raised", "KeyError"),
    found[10] == found[11] == ("raised", "ValueError"),
    circle in ((0, "a -> b -> c -> a\n"),),
    deep == (0, "n19999 20000 19999\n"),
])
