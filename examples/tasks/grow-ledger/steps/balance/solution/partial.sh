#!/bin/bash
# Enough for the next step: floats lose cents, and nobody asks about arguments.
set -euo pipefail
cat > ledger.py <<'END'
import sys

sums = {}
for line in open(sys.argv[1]):
    if line.strip():
        _, account, amount = line.split(",")
        sums[account] = sums.get(account, 0.0) + float(amount)
for account in sorted(sums):
    print(account, f"{sums[account]:.2f}")
END
