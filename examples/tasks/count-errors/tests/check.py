"""A log summed up in JSON."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import json

from grading import grade, text

try:
    found = json.loads(text("summary.json"))
except ValueError:
    found = {}
if not isinstance(found, dict):
    found = {}
grade([
    found.get("errors") == 5,
    found.get("by_part") == {"db": 3, "web": 1, "cache": 1},
    found.get("codes") == [5, 17, 400],
    found.get("first") == "12:00:01",
])
