"""A process that has imported a module and forks, on request, processes that run it.

    python -m gyre.cluster.fork_server MODULE [--dies-with-parent]

Requests are lines of JSON on its standard input, answers lines of JSON on its standard output,
where nothing else comes: what a module or a library prints goes to the log.
Every child is a session of its own and runs MODULE's `run_forked(arguments, secret)`. A child whose
request says `outlives_parent` lives on when this process ends; with --dies-with-parent the others
are killed even when this process is killed. Nothing here has threads, so that forking is safe.
"""

import ctypes
import gc
import importlib
import json
import os
import select
import signal
import sys
import traceback
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

ForkedMain = Callable[[Sequence[str], str], int]
"""A process's whole life: its arguments and its secret input, to its exit status."""
_LINE = 65_536
PR_SET_PDEATHSIG = 1
DIES_WITH_PARENT = "--dies-with-parent"
ANSWERS = 3
"""The descriptor of the output that the client reads."""


class ForkServer:
    """Forks children on request and reports their ends."""

    def __init__(
        self,
        main: ForkedMain,
        orders: Collection[signal.Signals],
        *,
        dies_with_parent: bool = False,
    ) -> None:
        """`orders` are signals that wait until a child can take them."""
        self._main = main
        self._orders = orders
        self._dies_with_parent = dies_with_parent
        self._pid = os.getpid()
        self._outlives_parent: dict[int, bool] = {}
        """Of each child that runs."""
        self._read, self._write = os.pipe()

    def work(self) -> None:
        """Serves requests until the client closes standard input."""
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        os.set_blocking(self._write, False)
        signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        waiting = b""
        while True:
            ready, _, _ = select.select([0, self._read], [], [])
            if self._read in ready:
                os.read(self._read, _LINE)
                self._reap()
            if 0 in ready:
                data = os.read(0, _LINE)
                if not data:
                    break
                *lines, waiting = (waiting + data).split(b"\n")
                for line in lines:
                    self._fork(json.loads(line))
        for pid, outlives_parent in self._outlives_parent.items():
            if not outlives_parent:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGTERM)
        signal.set_wakeup_fd(-1)
        os.close(self._read)
        os.close(self._write)

    def _fork(self, asked: Mapping[str, Any]) -> None:
        before = signal.pthread_sigmask(signal.SIG_BLOCK, self._orders)
        pid = os.fork()
        if pid == 0:
            self._run_child(asked)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        self._outlives_parent[pid] = asked["outlives_parent"]
        say({"request": asked["request"], "pid": pid})

    def _reap(self) -> None:
        while self._outlives_parent:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            del self._outlives_parent[pid]
            say({"pid": pid, "ended": os.waitstatus_to_exitcode(status)})

    def _run_child(self, asked: Mapping[str, Any]) -> None:
        """The child's whole life: nothing of the parent is left but what it has imported."""
        status = 1
        try:
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGCHLD, signal.SIGINT):
                signal.signal(number, signal.SIG_DFL)
            os.setsid()
            if self._dies_with_parent and not asked["outlives_parent"]:
                _die_with(self._pid)
            os.close(self._read)
            os.close(self._write)
            with Path(os.devnull).open("rb") as nothing, Path(asked["log"]).open("ab") as log:
                os.dup2(nothing.fileno(), 0)
                os.dup2(log.fileno(), 1)
                os.dup2(log.fileno(), 2)
                if asked["outlives_parent"]:
                    # The client must see an end of output, although this process lives on.
                    os.dup2(log.fileno(), ANSWERS, inheritable=False)
            status = self._main(asked["arguments"], asked["secret"])
        except SystemExit as ended:
            status = ended.code if isinstance(ended.code, int) else 1
        finally:
            if sys.exc_info()[0] is not None:
                # No caller will print it, because the process ends here.
                traceback.print_exc()
            sys.stderr.flush()
            # Not sys.exit, because what the parent registered to be done at its end is its own.
            os._exit(status)


def say(answer: Mapping[str, Any]) -> None:
    """One line, written whole, because children write theirs to the same reader."""
    os.write(ANSWERS, json.dumps(answer).encode() + b"\n")


def ready(url: str) -> None:
    """Sent by a child that takes requests now, and has nothing more to say."""
    say({"pid": os.getpid(), "ready": url})
    # The client must see the fork server's end, although this process lives on.
    os.close(ANSWERS)


def _die_with(parent: int) -> None:
    """However the parent ends, this process is killed then, or now if that has happened."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def main(arguments: Sequence[str]) -> int:
    name, *how = arguments
    # The parent may have left copies of the three open, which children would hold on to.
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    os.dup2(1, ANSWERS, inheritable=False)
    os.dup2(2, 1)
    # All of it stays: no search for garbage goes through it, here or in a child, where each page
    # that a search touches would be copied.
    gc.disable()
    module = importlib.import_module(name)
    if hasattr(module, "warm"):
        module.warm()
    gc.freeze()
    gc.enable()
    ForkServer(
        module.run_forked, getattr(module, "ORDERS", ()), dies_with_parent=how == [DIES_WITH_PARENT]
    ).work()
    os.close(ANSWERS)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
