#!/bin/bash
# Half of the work, for a score in between.
set -euo pipefail
sed -i 's/    stock\[name\] = count/    stock[name] = stock.get(name, 0) + count/' rules.py
