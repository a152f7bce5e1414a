"""A supervisor whose clock moves on when a test says so, so that no deadline is waited for.

    python moved_clock.py STEP_S FOLDER/order.json < secrets

SIGRTMIN moves the clock on by STEP_S seconds; everything else is as in `gyre.rollout.main`.
"""

import signal
import sys
import time

from gyre.rollout.main import main
from gyre.sandboxes.docker.sandbox import DockerSandbox
from gyre.sandboxes.local.sandbox import LocalSandbox
from gyre.sandboxes.process import ProcessSandbox


class MovedClock:
    """The clock of this process, and of its event loop; it moves on by signals.

    Not while a program is being started, whose own short limits would be over: a signal that comes
    then counts as soon as the program is waited for.
    """

    def __init__(self, step_s):
        self._step_s = step_s
        self._real = time.monotonic
        self._owed_s = self._passed_s = 0.0
        self._is_waiting = False

    def take_over(self):
        signal.signal(signal.SIGRTMIN, lambda *_: self._move())
        time.monotonic = lambda: self._real() + self._passed_s
        for kind in (DockerSandbox, LocalSandbox, ProcessSandbox):
            kind.wait = self._waiting(kind.wait)

    def _move(self):
        self._owed_s += self._step_s
        if self._is_waiting:
            self._pass()

    def _pass(self):
        self._passed_s, self._owed_s = self._passed_s + self._owed_s, 0.0

    def _waiting(self, wait):
        async def waited(sandbox):
            self._is_waiting = True
            self._pass()
            return await wait(sandbox)

        return waited


if __name__ == "__main__":
    MovedClock(float(sys.argv[1])).take_over()
    sys.exit(main(sys.argv[2:]))
