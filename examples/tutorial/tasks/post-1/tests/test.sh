exec python3 -I "${GYRE_EVALUATION:-/tests}/check.py"
