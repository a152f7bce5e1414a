"""Logs of three services merged by time."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from grading import grade, lines

WANTED = """2024-05-01T09:59:59.999Z [db] open
2024-05-01T10:00:03.100Z [auth] login ann
2024-05-01T10:00:03.250Z [web] GET /
2024-05-01T10:00:04.000Z [auth] logout ann
2024-05-01T10:00:04.000Z [db] query
2024-05-01T10:00:04.000Z [web] GET /a
2024-05-01T10:00:59.000Z [db] close
2024-05-01T10:01:00.000Z [web] GET /b""".splitlines()
LAST = ["auth 2024-05-01T10:00:04.000Z", "db 2024-05-01T10:00:59.000Z", "web 2024-05-01T10:01:00.000Z"]
found = lines("merged.log")
times = [line.split(" ")[0] for line in found]
grade([
    len(found) == len(WANTED),
    len(found) > 1 and times == sorted(times),
    sorted(found) == sorted(WANTED),
    found == WANTED,
    sorted(lines("last.txt")) == LAST,
    lines("last.txt") == LAST,
])
