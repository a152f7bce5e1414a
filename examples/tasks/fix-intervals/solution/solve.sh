#!/bin/bash
set -euo pipefail
cat > intervals.py <<'END'
def merge(intervals):
    merged = []
    for start, end in sorted(intervals):
        if end < start:
            raise ValueError(f"{start} to {end}")
        if merged and start <= merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], end)
        else:
            merged.append([start, end])
    return merged


def gaps(intervals):
    merged = merge(intervals)
    return [[left[1], right[0]] for left, right in zip(merged, merged[1:])]
END
