"""Child processes that never outlive the one that started them, however it ends."""

import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

STOP_S = 15.0
"""How long a child may take to end after it was told to."""


class Child:
    """A process in a session of its own, so that Ctrl-C reaches the parent alone; a context."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        folder: Path | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._process = subprocess.Popen(
            command,
            cwd=folder,
            env=None if environment is None else {**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def said(self) -> Iterator[str]:
        """What it prints, line by line, until it ends or closes its output."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            yield line.rstrip("\n")

    def wait(self) -> int:
        return self._process.wait()

    def stop(self) -> int:
        """It is told to end, and made to if it does not; so is everything it started."""
        if self._process.poll() is None:
            self._process.terminate()
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass  # Nothing of it is left.
        return self._process.returncode

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self.stop()
        finally:
            if self._process.stdout is not None:
                self._process.stdout.close()
