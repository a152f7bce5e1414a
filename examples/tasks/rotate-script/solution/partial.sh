#!/bin/bash
# Half of the work, for a score in between.
set -euo pipefail
cat > rotate.sh <<'END'
mv "$1" "$1.1"
: > "$1"
END
