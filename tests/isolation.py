"""A test leaves nothing behind: what it opened is closed, and what it changed is as it was.

After the teardown of each test this looks for threads, processes, descriptors (sockets, pipes,
event loops, files) and changed globals that were not there before it. What a fixture of a wider
scope opened is its own until that scope ends, with all that its processes start, however late.
Whatever is left is waited for, because an end may take a moment, and then fails the test that left
it, by name.

Of a test on a GPU, with Ray or with Megatron only globals are looked at: drivers, compilers of
kernels, gRPC and process groups open devices, sockets and processes when they are first needed, and
keep them for the whole process.
"""

import gc
import operator
import os
import signal
import sys
import threading
import time
import uuid
import warnings
from collections.abc import Generator, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import uvloop
from tests.waiting import patience

GRACE_S = patience(60.0)
"""How long an end that is under way may take."""
COOKIE = "GYRE_TESTS"
"""Every process that a test starts inherits it, and is known by it when its parent is gone."""
PATCHABLE = ("os", "os.path", "time", "shutil", "socket", "signal", "subprocess", "asyncio")
"""Modules of the standard library that tests patch; all of the package is looked at as well."""
IGNORED_LINKS = ("/dev/null", "/dev/urandom", "/dev/pts/", "/dev/tty")
FONTS = "/matplotlib/mpl-data/fonts/"
"""Kept open by Matplotlib for the whole process."""
SIGNALS = {one.name: int(one) for one in signal.Signals}
MONITOR = "tqdm_monitor"
"""The thread by which tqdm looks after all bars of progress of the process."""
LIBRARIES_THAT_KEEP = ("gpu", "cluster", "together", "megatron")
"""Markers of tests whose libraries keep what they open for the whole process."""
COMPILERS = ("TRITON_", "TORCHINDUCTOR_")
"""How variables begin that a compiler of kernels sets for the process when it first compiles."""


Resource = tuple[str, object]
"""Its kind and what it is known by; equal as long as it is the same one."""


class Isolation:
    """A plug-in that compares what is open after each test with what was open before it."""

    def __init__(self, grace_s: float = GRACE_S) -> None:
        self._grace_s = grace_s
        # With its first loop libuv opens a pipe for signals, which is the whole process's.
        uvloop.new_event_loop().close()
        # Known by where it is, too, because this may be a worker of a run within a test.
        self._cookie = f"{os.getpid()}-{uuid.uuid4().hex}"
        os.environ[COOKIE] = self._cookie
        self._mark = f"{COOKIE}={self._cookie}".encode()
        self._pids: dict[int, str | None] = {}
        self._newest_pid = 0
        self._settled: set[Resource] = set()
        """What was there before the first test, or has been told of once."""
        self._owned: dict[Resource, pytest.Item | pytest.Collector] = {}
        """What fixtures of wider scopes opened, and the scope that it ends with."""
        self._globals = Globals()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self) -> Generator[None]:
        # What came to be between two tests is nobody's: collectors, plug-ins, other workers.
        self._settled = set(self._open()) - self._owned.keys()
        self._globals.remember()
        yield

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(
        self, fixturedef: "pytest.FixtureDef[object]", request: pytest.FixtureRequest
    ) -> Generator[None, object, object]:
        if fixturedef.scope == "function":
            return (yield)
        before = self._open().keys()
        try:
            return (yield)
        finally:
            for one in self._open().keys() - before - self._owned.keys():
                self._owned[one] = request.node
            self._globals.remember()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(
        self, item: pytest.Item, nextitem: pytest.Item | None
    ) -> Generator[None]:
        yield
        going_on = set(nextitem.listchain()) if nextitem is not None else set()
        self._owned = {one: node for one, node in self._owned.items() if node in going_on}
        end = time.monotonic() + self._grace_s
        kept = any(item.get_closest_marker(name) for name in LIBRARIES_THAT_KEEP)
        left, seen = {} if kept else self._left(), None
        while left:
            if left.keys() != seen:
                # Objects in cycles close what they hold when they are found, and warn in this test;
                # a thread that has ended meanwhile may have left some.
                seen = left.keys()
                gc.collect()
            left = self._left()
            if not _may_end(left) or time.monotonic() >= end:
                break
            time.sleep(0.01)
        changed = self._globals.changed()
        if changed:
            self._globals.restore()
        if left or changed:
            said = "\n".join([*(f"  left open: {one}" for one in left.values()), *changed])
            pytest.fail(f"{item.nodeid} leaves something behind:\n{said}", pytrace=False)

    def _left(self) -> dict[Resource, str]:
        return {
            one: said
            for one, said in self._open().items()
            if one not in self._settled and one not in self._owned
        }

    def _open(self) -> dict[Resource, str]:
        """All that is open now, with a word about each."""
        return dict([*_threads(), *_descriptors(), *self._processes()])

    def _processes(self) -> Iterable[tuple[Resource, str]]:
        """Children of this process, and their children, also when those in between are gone."""
        newest = _newest_pid()
        if newest != self._newest_pid:
            now = {int(name) for name in os.listdir("/proc") if name.isdigit()}  # noqa: PTH208
            self._newest_pid = newest
        else:
            # Nothing has started, on the whole machine; what a test started may have ended.
            now = {pid for pid, said in self._pids.items() if not said or _is_there(pid)}
        for pid in self._pids.keys() - now:
            del self._pids[pid]
        for pid in now:
            # A process may have forked and not yet become what it will be: asked again.
            if self._pids.get(pid, "") == "" and pid != os.getpid():
                self._pids[pid] = self._ours(pid)
            if said := self._pids.get(pid):
                yield ("process", pid), said

    def _ours(self, pid: int) -> str | None:
        """What it runs if a test started it, else None."""
        try:
            there = Path("/proc", str(pid))
            parent = int((there / "stat").read_bytes().rpartition(b")")[2].split()[1])
            if parent != os.getpid() and self._mark not in (there / "environ").read_bytes():
                return None
            if (owner := self._owned.get(("process", parent))) is not None:
                # A browser, say, starts some of its processes when it is up, or anew.
                self._owned["process", pid] = owner
            command = (there / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except (OSError, ValueError):
            return None
        return f"process {pid} (parent {parent}): {command[:200] or 'a zombie'}"


def _may_end(left: Iterable[Resource]) -> bool:
    """Whether something is left that ends by itself; nobody but its owner closes a file."""
    return any(kind != "file" for kind, _ in left)


def _newest_pid() -> int:
    """The number that was given last, to a process or a thread of whomever."""
    with open("/proc/loadavg", "rb") as file:  # noqa: PTH123
        return int(file.read().rpartition(b" ")[2])


def _is_there(pid: int) -> bool:
    return os.path.exists(f"/proc/{pid}")  # noqa: PTH110


def _threads() -> Iterable[tuple[Resource, str]]:
    for thread in threading.enumerate():
        if thread.name == MONITOR:
            continue
        target = getattr(thread, "_target", None)
        said = f"thread {thread.name} of {getattr(target, '__qualname__', target)}"
        yield ("thread", thread), said


def _descriptors() -> Iterable[tuple[Resource, str]]:
    # Without pathlib, because this is done around each of thousands of tests.
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208
        try:
            link = os.readlink(f"/proc/self/fd/{name}")  # noqa: PTH115
        except OSError:
            continue  # The one by which the folder was listed.
        if not link.startswith(IGNORED_LINKS) and FONTS not in link:
            kind = "file" if link.startswith("/") else "descriptor"
            yield (kind, (name, link)), f"descriptor {name}: {link}{_listens(link)}"


def _listens(link: str) -> str:
    if not link.startswith("socket:["):
        return ""
    inode = link.removeprefix("socket:[").removesuffix("]")
    for table in ("tcp", "tcp6"):
        for line in Path("/proc/self/net", table).read_text().splitlines()[1:]:
            words = line.split()
            if words[9] == inode:
                state = "listens" if words[3] == "0A" else "connected"
                return f" ({state}, port {int(words[1].rpartition(':')[2], 16)})"
    return ""


@dataclass
class Globals:
    """State of the whole process that tests change: environment, folder, signals, functions."""

    state: dict[str, object] = field(default_factory=dict)
    names: dict[str, tuple[dict[str, object], list[str], list[object]]] = field(
        default_factory=dict
    )
    """By module: where its names stand, and every function and class under its name."""
    modules: set[str] = field(default_factory=set)
    num_modules: int = 0
    """Of all kinds, when they were last looked through."""

    def remember(self) -> None:
        self.state = self._state()
        if len(sys.modules) == self.num_modules:
            return
        self.num_modules = len(sys.modules)
        for name in [one for one in sys.modules if one not in self.modules]:
            module = sys.modules.get(name)
            if module is None or (name not in PATCHABLE and name.partition(".")[0] != "gyre"):
                continue
            self.modules.add(name)
            functions = {one: it for one, it in vars(module).items() if callable(it)}
            self.names[name] = vars(module), list(functions), list(functions.values())

    def changed(self) -> list[str]:
        """A line for each thing that is not as it was."""
        now = self._state()
        lines = [
            f"  changed: {name}: {_difference(self.state[name], now[name])}"
            for name in now
            if self.state[name] != now[name]
        ]
        return lines + [
            f"  changed: {module}.{name}"
            for module, there, name, _ in self._patched()
            if module in sys.modules and vars(sys.modules[module]) is there
        ]

    def _patched(self) -> list[tuple[str, dict[str, object], str, object]]:
        """Module, where the name stands, the name, and what it stood for."""
        return [
            (module, there, name, it)
            for module, (there, names, values) in self.names.items()
            # Thousands of names around each test: first all of a module at once.
            if not all(map(operator.is_, map(there.get, names), values))
            for name, it in zip(names, values, strict=True)
            if there.get(name) is not it
        ]

    def restore(self) -> None:
        """So that the next test is not blamed."""
        for _, there, name, it in self._patched():
            there[name] = it
        if (mode := self.state["torch's deterministic mode"]) != _deterministic_mode():
            sys.modules["torch"].set_deterministic_debug_mode(mode)
        environment = self.state["os.environ"]
        assert isinstance(environment, dict)
        for name in _environment().keys() - environment.keys():
            del os.environ[name]
        os.environ.update(environment)
        handlers = self.state["signal handlers"]
        assert isinstance(handlers, dict)
        for name, handler in handlers.items():
            if signal.getsignal(SIGNALS[name]) is not handler:
                signal.signal(SIGNALS[name], handler)

    def _state(self) -> dict[str, object]:
        return {
            "os.environ": _environment(),
            "the working folder": os.getcwd(),  # noqa: PTH109
            "the umask": _umask(),
            "signal handlers": {name: signal.getsignal(one) for name, one in SIGNALS.items()},
            "blocked signals": signal.pthread_sigmask(signal.SIG_BLOCK, ()),
            "sys.path": list(sys.path),
            "sys.argv": list(sys.argv),
            "sys.excepthook": sys.excepthook,
            "threading.excepthook": threading.excepthook,
            "warnings.showwarning": warnings.showwarning,
            "torch's deterministic mode": _deterministic_mode(),
        }


def _environment() -> dict[str, str]:
    """Without what pytest and compilers say there."""
    own = ("PYTEST_CURRENT_TEST", *COMPILERS)
    return {name: value for name, value in os.environ.items() if not name.startswith(own)}


def _deterministic_mode() -> int:
    """Off where nothing has loaded torch yet."""
    torch = sys.modules.get("torch")
    return 0 if torch is None else int(torch.get_deterministic_debug_mode())


def _umask() -> bytes:
    with open("/proc/self/status", "rb") as file:  # noqa: PTH123
        return file.read(256).partition(b"Umask:")[2].split()[0]


def _difference(before: object, after: object) -> str:
    if isinstance(before, dict) and isinstance(after, dict):
        keys = [one for one in before.keys() | after.keys() if before.get(one) != after.get(one)]
        return ", ".join(f"{one}: {before.get(one)!r} -> {after.get(one)!r}" for one in keys)
    return f"{before!r} -> {after!r}"
