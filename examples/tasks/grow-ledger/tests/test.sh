#!/bin/bash
# Says its score in reward.json; what it ends with means nothing.
exec python3 -I -B "${GYRE_EVALUATION:-/tests}/check.py"
