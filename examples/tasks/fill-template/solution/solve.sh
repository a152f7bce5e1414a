#!/bin/bash
set -euo pipefail
python3 - <<'END'
import re
values = dict(line.rstrip("\n").split("=", 1) for line in open("values.env"))
text = open("letter.txt").read()
open("out.txt", "w").write(re.sub(r"\{\{(\w+)\}\}", lambda m: values.get(m[1], "(unknown)"), text))
END
