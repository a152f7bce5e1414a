#!/bin/bash
# Half of the work, for a score in between.
set -euo pipefail
cat > intervals.py <<'END'
def merge(intervals):
    merged = []
    for start, end in sorted(intervals):
        if merged and start <= merged[-1][1]:
            merged[-1][1] = end
        else:
            merged.append([start, end])
    return merged
END
