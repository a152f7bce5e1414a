"""A file with two exact lines."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from grading import grade, lines

found = lines("greeting.txt")
grade([found[:1] == ["Hello, workspace!"], found[1:2] == ["Goodbye."], len(found) == 2])
