#!/bin/bash
set -euo pipefail
cat > rules.py <<'END'
def add(stock, name, count):
    stock[name] = stock.get(name, 0) + count


def take(stock, name, count):
    if stock.get(name, 0) < count:
        return False
    stock[name] -= count
    return True
END
python3 - <<'END'
from pathlib import Path
path = Path("inventory.py")
text = path.read_text()
text = text.replace("        rules.take(stock, arguments[1], int(arguments[2]))\n", "        if not rules.take(stock, arguments[1], int(arguments[2])):\n            print(f\"not enough {arguments[1]}\")\n            return 1\n")
text = text.replace("in stock.items():\n            print", "in sorted(stock.items()):\n            if count:\n                print")
path.write_text(text)
END
