#!/bin/bash
set -euo pipefail
python3 - <<'END'
from pathlib import Path
sets = {}
for path in sorted(Path("inbox").rglob("*")):
    if path.is_file():
        sets.setdefault(path.read_bytes(), []).append(str(path))
same = {data: names for data, names in sets.items() if len(names) > 1}
Path("duplicates.txt").write_text("".join(sorted(" ".join(sorted(names)) + "\n" for names in same.values())))
Path("saved.txt").write_text(f"{sum(len(data) * (len(names) - 1) for data, names in same.items())}\n")
END
