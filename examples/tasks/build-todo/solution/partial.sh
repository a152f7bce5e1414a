#!/bin/bash
# Half of the work, for a score in between.
set -euo pipefail
cat > todo.py <<'END'
import json
import sys
from pathlib import Path

FILE = Path("todo.json")
entries = json.loads(FILE.read_text()) if FILE.exists() else []
if sys.argv[1] == "add":
    entries.append(" ".join(sys.argv[2:]))
    print(f"added {len(entries)}")
elif sys.argv[1] == "list":
    for number, text in enumerate(entries, start=1):
        print(f"{number} [ ] {text}")
FILE.write_text(json.dumps(entries))
END
