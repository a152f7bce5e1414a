#!/bin/bash
set -euo pipefail
for note in notes/*.txt; do echo "$(basename "$note") $(wc -l < "$note")"; done > report.txt
echo "total $(cat notes/*.txt | wc -l)" >> report.txt
