#!/bin/bash
# Half of the work, for a score in between.
set -euo pipefail
cat > planner.py <<'END'
def needed(plan, name):
    found = set()
    for one in plan.get(name, []):
        found |= {one, *needed(plan, one)}
    return sorted(found)


def order(plan):
    names = sorted({*plan, *(one for needs in plan.values() for one in needs)})
    found = []
    while names:
        for name in names:
            if all(one in found for one in plan.get(name, [])):
                found.append(name)
                names.remove(name)
                break
        else:
            raise ValueError("circle")
    return found
END
