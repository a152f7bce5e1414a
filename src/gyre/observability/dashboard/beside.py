"""The page of a run that is being trained: a process beside it, which ends with it.

Rule 1: a page that cannot be shown is no reason not to train.
"""

import select
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

READY_S = 20.0
STOP_S = 5.0


@contextmanager
def shown_beside(folder: Path) -> Iterator[str | None]:
    """The link to its page while this lasts; None where there is none."""
    try:
        process = _started(folder)
    except OSError:
        yield None
        return
    try:
        yield _link(process)
    finally:
        _end(process)


def _started(folder: Path) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "gyre.observability.dashboard.showing", str(folder)],
        # It holds the other end, which says that this process is gone, however it went.
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )


def _link(process: "subprocess.Popen[str]") -> str | None:
    assert process.stdout is not None
    ready, _, _ = select.select([process.stdout], [], [], READY_S)
    return process.stdout.readline().strip() or None if ready else None


def _end(process: "subprocess.Popen[str]") -> None:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.close()
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    process.stdout.close()
