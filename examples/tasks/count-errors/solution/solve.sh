#!/bin/bash
set -euo pipefail
python3 - <<'END'
import json, re
rows = [re.match(r"(\S+) (\S+) \[(\w+)\] (.*)", line).groups() for line in open("server.log")]
bad = [row for row in rows if row[1] == "ERROR"]
parts = {}
for row in bad:
    parts[row[2]] = parts.get(row[2], 0) + 1
codes = sorted({int(n) for row in bad for n in re.findall(r"code (\d+)", row[3])})
json.dump({"errors": len(bad), "by_part": parts, "codes": codes, "first": bad[0][0]}, open("summary.json", "w"))
END
