"""A supervisor whose clock moves on when a test says so, so that no deadline is waited for.

    python moved_clock.py STEP_S FOLDER/order.json < secrets

SIGRTMIN moves the clock on by STEP_S seconds; everything else is as in `gyre.rollout.main`.
"""

import signal
import sys
import time

from gyre.rollout.main import main


def moved_by(step_s):
    """From now on the clock of this process, and of its event loop, moves on by signals."""
    real, passed_s = time.monotonic, 0.0

    def move(number, frame):
        nonlocal passed_s
        passed_s += step_s

    signal.signal(signal.SIGRTMIN, move)
    time.monotonic = lambda: real() + passed_s


if __name__ == "__main__":
    moved_by(float(sys.argv[1]))
    sys.exit(main(sys.argv[2:]))
