#!/bin/bash
set -euo pipefail
cat > todo.py <<'END'
import json
import sys
from pathlib import Path

FILE = Path("todo.json")


def main(words):
    kept = json.loads(FILE.read_text()) if FILE.exists() else {"last": 0, "entries": []}
    match words:
        case ["add", _, *_]:
            kept["last"] += 1
            kept["entries"].append({"n": kept["last"], "text": " ".join(words[1:]), "done": False})
            print(f"added {kept['last']}")
        case ["done" | "remove" as verb, number]:
            found = [one for one in kept["entries"] if str(one["n"]) == number]
            if not found:
                print(f"no entry {number}")
                return 1
            if verb == "done":
                found[0]["done"] = True
            else:
                kept["entries"].remove(found[0])
            print(f"{'done' if verb == 'done' else 'removed'} {number}")
        case ["list"] | ["list", "--open"]:
            for one in kept["entries"]:
                if len(words) == 1 or not one["done"]:
                    print(f"{one['n']} [{'x' if one['done'] else ' '}] {one['text']}")
        case _:
            print("usage: todo.py add|done|remove|list")
            return 2
    FILE.write_text(json.dumps(kept))
    return 0


sys.exit(main(sys.argv[1:]))
END
