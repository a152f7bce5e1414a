"""Supervisors that die by SIGKILL around the n-th thing they do to the disk, and who follows them.

    python -m tests.rollout.support.killed_supervisor FOLDER < order

FOLDER/N/order.json is supervised by a process that dies at the N-th moment, and then by one that
does not die, for N = 1, 2, ... until one comes to its end before its moment. Several go on at once,
because they mostly wait for the disk, so that a few more may come to their end that way.
"""

import os
import signal
import sys
from pathlib import Path

import msgspec

from gyre.rollout.main import run_forked
from gyre.rollout.spec import ExecutionSpec, write_order

TOLD = '{"key": "k"}'
MOMENTS = ("fsync", "rename", "replace")
"""Calls of `os` before and after each of which a process may die."""
MOST = 100
"""A life with more moments than this does not end."""
AT_ONCE = 4


def dies_at(number):
    """From now on this process dies at that moment."""
    left = number

    def moment():
        nonlocal left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def around(call):
        def done(*given, **named):
            moment()
            call(*given, **named)
            moment()

        return done

    for name in MOMENTS:
        setattr(os, name, around(getattr(os, name)))


def lived(folder, number=None):
    """How a supervisor of this folder ended: minus the signal, or its exit status."""
    pid = os.fork()
    if pid == 0:
        os.setsid()
        if number is not None:
            dies_at(number)
        os._exit(run_forked([str(folder / "order.json")], TOLD))
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def main(folder):
    order = msgspec.json.decode(sys.stdin.buffer.read(), type=ExecutionSpec)
    started = []
    for first in range(1, AT_ONCE + 1):
        if (pid := os.fork()) == 0:
            os._exit(lives(folder, order, first))
        started.append(pid)
    return max([os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in started])


def lives(folder, order, first):
    """Every so many numbers from the first; the exit status of whoever looks after them."""
    for number in range(first, MOST, AT_ONCE):
        own = folder / str(number)
        write_order(own, order)
        if lived(own, number) == 0:
            return 0
        if (status := lived(own)) != 0:
            print(f"the one after death {number} ended with {status}", file=sys.stderr, flush=True)
            return 1
    print(f"more than {MOST} moments", file=sys.stderr, flush=True)
    return 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
