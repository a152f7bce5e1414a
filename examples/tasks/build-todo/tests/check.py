"""A list of things to do, for the command line."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from grading import WORKSPACE, grade, python


def session(*commands):
    """Status and output of each command, with a list that begins empty."""
    (WORKSPACE / "todo.json").unlink(missing_ok=True)
    return [python("todo.py", *command.split()) for command in commands]


one = session("add buy milk", "add call bob", "list")
done = session("add a", "add b", "done 1", "list", "list --open")
gone = session("add a", "add b", "remove 2", "add c", "list")
empty = session("list")
bad = session("done 7", "remove 1", "frob", "add", "")
grade([
    one[0] == (0, "added 1\n") and one[1] == (0, "added 2\n"),
    one[2] == (0, "1 [ ] buy milk\n2 [ ] call bob\n"),
    done[2] == (0, "done 1\n"),
    done[3] == (0, "1 [x] a\n2 [ ] b\n"),
    done[4] == (0, "2 [ ] b\n"),
    gone[2] == (0, "removed 2\n"),
    gone[3:] == [(0, "added 3\n"), (0, "1 [ ] a\n3 [ ] c\n")],
    empty == [(0, "")],
    bad[:2] == [(1, "no entry 7\n"), (1, "no entry 1\n")],
    bad[2:] == [(2, "usage: todo.py add|done|remove|list\n")] * 3,
])
