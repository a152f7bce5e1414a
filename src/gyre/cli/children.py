"""Child processes that never outlive the one that started them, however it ends."""

import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from types import FrameType, TracebackType
from typing import Self

STOP_S = 15.0
"""How long a child may take to end after it was told to."""


class ChildProcess:
    """A process in a session of its own, so that Ctrl-C reaches the parent alone; a context.

    `start` is how one is made where an interruption must not lose it.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._process = subprocess.Popen(
            command,
            env=None if environment is None else {**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    @classmethod
    def start(
        cls,
        stack: ExitStack,
        command: Sequence[str],
        *,
        environment: Mapping[str, str] | None = None,
    ) -> Self:
        """A child that ends with the stack, even if a signal comes while it is being started."""
        with _undisturbed():
            child = cls(command, environment=environment)
            stack.push(child)
        return child

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
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
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


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Signals that end a process are noted and come at the end; for the main thread."""
    noted: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        noted.append(number)

    before = {one: signal.signal(one, note) for one in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)
        for number in noted:
            signal.raise_signal(number)
