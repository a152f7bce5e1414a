#!/bin/bash
# Half of the work, for a score in between.
set -euo pipefail
sed -e 's/{{name}}/Nora \& Sons/g' letter.txt > out.txt
