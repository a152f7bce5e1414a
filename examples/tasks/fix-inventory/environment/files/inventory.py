import json
import sys
from pathlib import Path

import rules

STOCK = Path("stock.json")


def main(arguments):
    stock = json.loads(STOCK.read_text()) if STOCK.exists() else {}
    if arguments[0] == "add":
        rules.add(stock, arguments[1], int(arguments[2]))
    elif arguments[0] == "take":
        rules.take(stock, arguments[1], int(arguments[2]))
    elif arguments[0] == "show":
        for name, count in stock.items():
            print(f"{name} {count}")
    else:
        print("expected add, take or show")
        return 2
    STOCK.write_text(json.dumps(stock))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
