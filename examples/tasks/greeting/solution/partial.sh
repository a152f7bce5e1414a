#!/bin/bash
# Half of the work, for a score in between.
set -euo pipefail
printf 'Hello, workspace!\n' > greeting.txt
