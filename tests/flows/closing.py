"""One process of the product, and what it leaves open when its main function has returned.

    python -m tests.flows.closing REPORT MODULE ARGUMENT...

REPORT is a file: one line for each thread and each descriptor that was not there before MODULE's
`main` was called, and still is there after it.
"""

import gc
import importlib
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import uvloop
from tests.waiting import patience

GRACE_S = patience(60.0)
"""Threads that wait for child processes say so before they end."""
KEPT = ("/supervisor.lock",)
"""A supervisor holds it until its process is gone, and by that is known to live."""
STANDARD = ("0", "1", "2")
"""May be led elsewhere, and are open for as long as the process lives."""


def left_open():
    """Everything that is open now, as lines."""
    found = [f"thread {one.name}" for one in threading.enumerate()]
    for one in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            where = str(one.readlink())
            if one.name not in STANDARD and not where.startswith("/dev/"):
                found.append(f"descriptor {one.name}: {where}")
    return {line for line in found if not line.endswith(KEPT)}


def closed(main, given):
    """Its status, and what it left."""
    # The library opens something for all loops with the first of them, and keeps it.
    uvloop.new_event_loop().close()
    before = left_open()
    status = main(given)
    gc.collect()
    end = time.monotonic() + GRACE_S
    while (left := left_open() - before) and time.monotonic() < end:
        time.sleep(0.01)
    return status, sorted(left)


def run(report, module, *arguments):
    given = Path(arguments[0]) if module.endswith("dashboard.server") else list(arguments)
    status, left = closed(importlib.import_module(module).main, given)
    Path(report).write_text("".join(f"{line}\n" for line in left))
    return status


if __name__ == "__main__":
    sys.exit(run(*sys.argv[1:]))
