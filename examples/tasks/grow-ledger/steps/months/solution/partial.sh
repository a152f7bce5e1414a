#!/bin/bash
# The list alone, by hand.
set -euo pipefail
printf 'food -0.30\nrent -975.50\nsalary 2400.00\n' > march.txt
