#!/bin/bash
set -euo pipefail
cat > search.py <<'END'
def find(values, wanted):
    low, high = 0, len(values)
    while low < high:
        middle = (low + high) // 2
        if values[middle] < wanted:
            low = middle + 1
        else:
            high = middle
    if low < len(values) and values[low] == wanted:
        return low
    return None
END
