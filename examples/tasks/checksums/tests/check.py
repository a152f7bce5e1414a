"""A list of checksums, and a script that finds what changed."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import hashlib

from grading import WORKSPACE, grade, lines, run

DATA = {"data/a.txt": "alpha\n", "data/sub/b.txt": "beta\n", "data/sub/c d.txt": "gamma\n", "data/z.txt": "omega\n"}
WANTED = [f"{hashlib.sha256(text.encode()).hexdigest()}  {name}" for name, text in sorted(DATA.items())]
listed = lines("SHA256SUMS")
kept = [(WORKSPACE / name).is_file() and (WORKSPACE / name).read_text() == text for name, text in DATA.items()]
same = run("sh", "verify.sh")
(WORKSPACE / "data/a.txt").write_text("other\n")
changed = run("sh", "verify.sh")
(WORKSPACE / "data/sub/b.txt").unlink()
(WORKSPACE / "data/new.txt").write_text("new\n")
several = run("sh", "verify.sh")
grade(
    [
        sorted(listed) == sorted(WANTED),
        listed == WANTED,
        listed == WANTED and same == (0, ""),
        changed == (1, "changed data/a.txt\n"),
        several == (1, "changed data/a.txt\nnew data/new.txt\nmissing data/sub/b.txt\n"),
    ],
    keeps=kept,
)
