"""Processes as a run starts its cells: forked by a nursery that has imported what they need."""

import json
import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from functools import cache
from pathlib import Path

import pytest
from tests.waiting import PATIENCE_S

ROOT = Path(__file__).parents[3]


class Nursed:
    """One process that the nursery has forked."""

    def __init__(self, news):
        self._news = news
        self.pid = None
        self.url = None
        self.returncode = None

    def heard(self, answer):
        self.pid = answer["pid"]
        self.url = answer.get("ready", self.url)
        self.returncode = answer.get("ended", self.returncode)

    def is_ready(self):
        """Whether it takes orders, once it says so or has ended."""
        with self._news:
            self._news.wait_for(lambda: self.url or self.returncode is not None, PATIENCE_S)
        return self.url is not None

    def wait(self, timeout=None):
        with self._news:
            if not self._news.wait_for(lambda: self.returncode is not None, timeout):
                raise subprocess.TimeoutExpired(str(self.pid), timeout)
        return self.returncode

    def terminate(self):
        self._send(signal.SIGTERM)

    def kill(self):
        self._send(signal.SIGKILL)

    def _send(self, number):
        if self.returncode is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)


class Nursery:
    """Starts processes of a module, and hears of their lives in a thread."""

    def __init__(self, module):
        self._process = subprocess.Popen(
            [sys.executable, "-m", "gyre.cluster.fork_server", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
            start_new_session=True,
        )
        self._news = threading.Condition()
        self._asked = []
        self._by_pid = {}
        self._is_over = False
        self._thread = threading.Thread(target=self._listen, name="nursery", daemon=True)
        self._thread.start()

    def fork(self, *arguments, log):
        """A process with these arguments, once it has a pid."""
        child = Nursed(self._news)
        with self._news:
            request = len(self._asked)
            self._asked.append(child)
            asked = {"request": request, "arguments": [*map(str, arguments)], "secret": ""}
            asked |= {"log": str(log), "outlives_parent": False}
            self._process.stdin.write(json.dumps(asked).encode() + b"\n")
            self._process.stdin.flush()
            self._news.wait_for(lambda: child.pid is not None or self._is_over, PATIENCE_S)
            assert child.pid is not None, "the nursery forks no process: see its errors"
        return child

    def close(self):
        self._process.stdin.close()
        self._process.wait()
        self._thread.join()
        self._process.stdout.close()

    def _listen(self):
        early = {}
        for line in self._process.stdout:
            answer = json.loads(line)
            pid = answer["pid"]
            with self._news:
                if "request" in answer:
                    self._by_pid[pid] = self._asked[answer["request"]]
                    for one in (answer, *early.pop(pid, ())):
                        self._by_pid[pid].heard(one)
                elif pid in self._by_pid:
                    self._by_pid[pid].heard(answer)
                else:
                    # Its own first word may be spoken before its parent tells of it.
                    early.setdefault(pid, []).append(answer)
                self._news.notify_all()
        with self._news:
            self._is_over = True
            self._news.notify_all()


@cache
def fork_server(module):
    """The one of a module, for all tests of this process; `nurseries` opens and closes it."""
    return Nursery(module)


def fork_clients(*modules):
    """A fixture for a module of tests: these are there, and end with the last of all tests."""

    @pytest.fixture(scope="session", autouse=True)
    def opened():
        for one in modules:
            fork_server(one)
        yield
        for one in modules:
            fork_server(one).close()

    return opened
