#!/bin/bash
set -euo pipefail
for f in logs/*.log; do s="$(basename "$f" .log)"; sed -E "s/^([^ ]+) /\1 [$s] /" "$f"; done | sort -s -k1,1 > merged.log
for f in logs/*.log; do echo "$(basename "$f" .log) $(tail -1 "$f" | cut -d' ' -f1)"; done > last.txt
