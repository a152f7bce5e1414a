#!/bin/bash
set -euo pipefail
find data -type f | LC_ALL=C sort | while IFS= read -r f; do sha256sum "$f"; done > SHA256SUMS
cat > verify.sh <<'END'
python3 - <<'PROGRAM'
import hashlib, sys
from pathlib import Path
listed = {line[66:]: line[:64] for line in Path("SHA256SUMS").read_text().splitlines()}
found = {str(p): hashlib.sha256(p.read_bytes()).hexdigest() for p in Path("data").rglob("*") if p.is_file()}
said = []
for name in sorted({*listed, *found}):
    if name not in found:
        said.append(f"missing {name}")
    elif name not in listed:
        said.append(f"new {name}")
    elif listed[name] != found[name]:
        said.append(f"changed {name}")
print("\n".join(said), end="\n" if said else "")
sys.exit(1 if said else 0)
PROGRAM
END
