#!/bin/bash
set -euo pipefail
cat > ledger.py <<'END'
import sys
from decimal import Decimal
from pathlib import Path


def main(words):
    if len(words) != 1:
        print("usage: ledger.py FILE")
        return 2
    sums = {}
    for line in filter(None, Path(words[0]).read_text().splitlines()):
        _, account, amount = line.split(",")
        sums[account] = sums.get(account, Decimal(0)) + Decimal(amount)
    for account in sorted(sums):
        print(account, f"{sums[account]:.2f}")
    return 0


sys.exit(main(sys.argv[1:]))
END
