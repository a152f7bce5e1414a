"""The machine that simulated processes run on: they start, get signals, and die with all they had.

Rule 1: a process that dies lets go of its files and locks, and its connections break.
Rule 2: processes that do not last die with whoever started them.
"""

import asyncio
import os
import signal
from contextlib import suppress
from contextvars import Context
from pathlib import Path, PurePath

from tests.chaos_sim.loop import NODE, Node

from gyre.cluster.process import ForkedProcess, LocalNode

FIRST_PID = 100_000_000
"""No real process has such a number, whatever is asked about it."""


REAL_GETPID = os.getpid
OPEN = Path("/proc/self/fd")


class Machine:
    """All processes, by the names they have."""

    def __init__(self, loop, rng, folder, trace):
        self.loop = loop
        self.rng = rng
        self.folder = folder
        self.trace = trace
        self.files = OpenFiles(folder)
        self.running = {}
        self._by_pid = {}
        self.graves = []
        self._pids = FIRST_PID
        self._outside = Context()

    def start(self, name, main, *, files=None, lasts=False, delay_s=None):
        """`main` gets the process and is its whole life; `files` says which files are its own."""
        self._pids += 1
        node = Node(name, self._pids)
        process = Process(self, node, files)
        parent = NODE.get()
        if parent is not None and not lasts:
            parent.at_death.append(lambda: self.kill(process))
        self.trace(f"start {name}")
        self.running[name] = process
        self._by_pid[node.pid] = process
        context = node.context()
        wait_s = self.rng.uniform(0.01, 0.05) if delay_s is None else delay_s
        self.later(wait_s, self._begin, process, main, context)
        return process

    def later(self, delay_s, act, *args):
        """Whoever asks for it may be dead by then."""
        self.loop.call_later(delay_s, act, *args, context=self._outside.copy())

    def _begin(self, process, main, context):
        if not process.simulated.is_dead:
            self.loop.create_task(self._live(process, main), context=context)

    async def _live(self, process, main):
        try:
            await main(process)
            self._over(process, 0)
        except asyncio.CancelledError:
            self._over(process, -signal.SIGTERM)
        except Exception as error:
            self.trace(f"{process.name} ends: {type(error).__name__}: {error}")
            self._over(process, 1)

    # What the operating system is asked

    def getpid(self):
        node = NODE.get()
        return REAL_GETPID() if node is None else node.pid

    def send(self, pid, number):
        """Where `os.kill` and `os.killpg` stand."""
        if pid < FIRST_PID:
            raise PermissionError(f"{pid} is no simulated process")
        if not self.lives(pid):
            raise ProcessLookupError(pid)
        if number:
            self._deliver(self._by_pid[pid], number)

    def lives(self, pid, log=None):
        return pid in self._by_pid and not self._by_pid[pid].simulated.is_dead

    def _deliver(self, process, number):
        handlers = process.simulated.signals
        if number == signal.SIGKILL or (number == signal.SIGTERM and number not in handlers):
            self.kill(process)
        elif number in handlers:
            callback, args, context = handlers[number]
            self.loop.call_soon(callback, *args, context=context)

    # What befalls them

    def kill(self, process):
        """SIGKILL."""
        if not process.simulated.is_dead:
            self._over(process, -signal.SIGKILL)

    def stop(self, process, lasts_s):
        """SIGSTOP, and SIGCONT after a while."""
        process.simulated.is_stopped = True
        self.later(lasts_s, self._go_on, process)

    def _go_on(self, process):
        if process.simulated.is_stopped and not process.simulated.is_dead:
            self.trace(f"continue {process.name}")
            self.loop.go_on(process.simulated)

    def _over(self, process, status):
        node = process.simulated
        if node.is_dead:
            return
        node.is_dead = True
        self.trace(f"end {node.name} {int(status)}")
        self.graves.append(node)
        if self.running.get(node.name) is process:
            del self.running[node.name]
        if process.files is not None:
            self.files.release(process.files)
        broken, node.at_death = node.at_death, []
        for one in broken:
            one()
        self.later(self.rng.uniform(0.001, 0.01), process.report_end, status)


class Process(ForkedProcess):
    """One process, as the code that started it sees it; its signals are this machine's."""

    def __init__(self, machine, simulated, files):
        log = machine.folder / "logs" / simulated.name
        super().__init__(simulated.name, simulated.pid, log, LocalNode())
        self._machine = machine
        self.simulated = simulated
        self.files = files

    def say_ready(self, address):
        self._machine.later(0.001, self.report_ready, address)


class OpenFiles:
    """Files that simulated processes have open, by the numbers that the real process has them."""

    def __init__(self, folder):
        self._folder = f"{folder}/"
        self._released = []

    def release(self, files):
        """Those that are a dead process's become nothing, and so do the locks on them.

        Their numbers stay taken, because what the process left may still close them.
        """
        nothing = os.open(os.devnull, os.O_RDWR)
        try:
            for number, path in self._open():
                if files(PurePath(path)):
                    os.dup2(nothing, number, inheritable=False)
                    self._released.append(number)
        finally:
            os.close(nothing)

    def close(self):
        """Nothing is open any more."""
        for number in self._released:
            with suppress(OSError):
                if (OPEN / str(number)).readlink() == Path(os.devnull):
                    os.close(number)
        for number, _ in list(self._open()):
            os.close(number)

    def _open(self):
        for number in OPEN.iterdir():
            try:
                path = str(number.readlink())
            except OSError:
                continue
            if path.startswith(self._folder):
                yield int(number.name), path.removeprefix(self._folder)
