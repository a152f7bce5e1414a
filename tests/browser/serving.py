"""Pages as people get them: from `gyre watch`, and from `gyre train` at a terminal."""

import os
import pty
import re
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.waiting import PATIENCE_S

ROOT = Path(__file__).parents[2]
_LINK = re.compile(r"http://127\.0\.0\.1:\d+/\?key=[\w-]+(?=\s)")
"""Whole, because a terminal may give its first half first."""
GYRE = f"""
import sys
from gyre.cli.main import main
from gyre.observability.dashboard import server
server.READY_S = {PATIENCE_S}
sys.exit(main(sys.argv[1:]))
"""
"""As `gyre`, but that a run's page may take as long to start as this machine needs."""


@contextmanager
def watching(*places):
    """The link that `gyre watch` prints."""
    command = [sys.executable, "-m", "gyre", "watch", *map(str, places)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            found = _LINK.search(process.stdout.readline())
            assert found is not None
            yield found[0]
        finally:
            process.terminate()
            process.wait(PATIENCE_S)


@dataclass
class Training:
    """A `gyre train` at a terminal of its own, whose words are kept."""

    process: subprocess.Popen
    terminal: int
    said: str = ""
    link: str | None = None
    _linked: threading.Event = field(default_factory=threading.Event)

    def listen(self):
        """Until the terminal is closed."""
        while True:
            try:
                data = os.read(self.terminal, 65536)
            except OSError:  # Linux says so when the last program has left a terminal.
                data = b""
            self.said += data.decode(errors="replace")
            if self.link is None and (found := _LINK.search(self.said)):
                self.link = found[0]
            if self.link is not None or not data:
                self._linked.set()
            if not data:
                return

    def wait_link(self):
        assert self._linked.wait(PATIENCE_S), self.said
        assert self.link is not None, self.said
        return self.link

    @property
    def is_running(self):
        return self.process.poll() is None

    @contextmanager
    def held(self):
        """Nothing is decided meanwhile, so that the journal can be held against the page."""
        assert self.is_running, self.said
        os.kill(self.process.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self.process.pid, signal.SIGCONT)


@contextmanager
def training(file, folder, *overrides):
    """A run of a file, killed with the block unless it has come to its end."""
    ours, theirs = pty.openpty()
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    command = [sys.executable, "-c", GYRE, "train", str(file), f"run.folder={folder}"]
    with subprocess.Popen(
        [*command, *overrides],
        cwd=ROOT,
        env={**os.environ, "PATH": path},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    ) as process:
        os.close(theirs)
        found = Training(process, ours)
        listener = threading.Thread(target=found.listen, daemon=True)
        listener.start()
        try:
            yield found
        finally:
            process.terminate()
            process.wait(PATIENCE_S)
            listener.join(PATIENCE_S)
            os.close(ours)
