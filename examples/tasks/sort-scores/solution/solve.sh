#!/bin/bash
set -euo pipefail
{ head -1 scores.csv; tail -n +2 scores.csv | sort -t, -k2,2nr -k1,1; } > ranking.csv
sed -n 2p ranking.csv | cut -d, -f1 > winner.txt
