"""Waiting for what another thread or process does, with an end."""

import time

PATIENCE_S = 180.0
LOOK_S = 0.005


def wait_until(holds):
    """Returns when it holds, and fails when that takes far too long."""
    until = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < until, "nothing came of it"
        time.sleep(LOOK_S)
