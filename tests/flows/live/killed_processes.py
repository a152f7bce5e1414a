"""A controller that ends at a moment, as nothing outside it could meet it.

    python -m tests.flows.live.killed_processes RUNFILE HOW MOMENT [resumes]

It is killed, alone or with every process of the run, fails by an error, or is told to stop.
A moment is a kind of fact with the number of its occurrence in this process (`StepTaken:2`), or an
order that is being carried out (`Publish:1`).
"""

import asyncio
import os
import signal
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path

import uvloop

from gyre.controller.controller import Controller
from gyre.controller.run_dir import read_run
from gyre.types.errors import ModelError

MEANWHILE_S = 0.01
"""An order has begun by then, and has not ended."""


def all_of(folder):
    """Every other process that works in the run's folder, or writes its errors there."""
    for path in Path("/proc").iterdir():
        if not path.name.isdecimal() or int(path.name) == os.getpid():
            continue
        for link in ("cwd", "fd/2"):
            try:
                place = (path / link).readlink()
            except OSError:
                continue
            if place.is_relative_to(folder):
                yield int(path.name)
                break


def kill_all(folder):
    """This one last, which says how many others there were."""
    killed = set()
    while pids := set(all_of(folder)) - killed:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        killed |= pids
    print(len(killed), file=sys.stderr, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)


def fail(folder):
    raise ModelError("something that nobody can mend here")


HOW = {
    "killed": lambda folder: os.kill(os.getpid(), signal.SIGKILL),
    "killed with all": kill_all,
    "failing": fail,
    "told": lambda folder: os.kill(os.getpid(), signal.SIGINT),
}


class Moment:
    """Counts facts and orders, and ends this process at the one that was named."""

    def __init__(self, how, folder, text):
        self._end = partial(HOW[how], folder)
        self._kind, _, number = text.partition(":")
        self._left = int(number)

    def heard(self, now, fact):
        if self._is_it(fact):
            self._end()

    def decided(self, scheduler, now, event, commands):
        if any(self._is_it(one) for one in commands):
            asyncio.get_running_loop().call_later(MEANWHILE_S, self._end)

    def _is_it(self, one):
        self._left -= type(one).__name__ == self._kind
        return self._left == 0 and type(one).__name__ == self._kind


def main(path, how, moment, resumes=""):
    run = read_run(Path(path))
    ends = Moment(how, Path(run.config.run.place), moment)
    controller = Controller(
        run,
        Path(run.config.run.place),
        resumes=bool(resumes),
        listeners=[ends.heard],
        decided=ends.decided,
    )
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(controller.work())


if __name__ == "__main__":
    main(*sys.argv[1:])
