#!/bin/bash
set -euo pipefail
cat > ledger.py <<'END'
import sys
from decimal import Decimal
from pathlib import Path


def main(words):
    match words:
        case [name]:
            month = ""
        case [name, "--month", month]:
            pass
        case _:
            print("usage: ledger.py FILE")
            return 2
    sums = {}
    for line in filter(None, Path(name).read_text().splitlines()):
        date, account, amount = line.split(",")
        if date.startswith(month):
            sums[account] = sums.get(account, Decimal(0)) + Decimal(amount)
    for account in sorted(sums):
        print(account, f"{sums[account]:.2f}")
    return 0


sys.exit(main(sys.argv[1:]))
END
python3 ledger.py ledger.csv --month 2025-03 > march.txt
