"""See a whole recording in a minute: a scripted engine, the real proxy, a small agent, twice."""

import argparse
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import FrameType, TracebackType
from typing import Self

from gyre.types.errors import ConfigError

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


EXECUTIONS = ("attempt-1", "attempt-2")
FAMILY = "qwen3"
COMPACT_AT = 640
"""Tokens at which the agent summarises; it passes them once, in its third turn."""

MONTHS = "January February March April May June July August September October November December"
NOTES = {
    "attempt-1": {
        "note-garden.txt": "In {} the garden was dry, and one more bed was dug by the wall.",
        "note-letters.txt": "Write to the school about the {} meeting.",
    },
    "attempt-2": {
        "note-harbour.txt": "In {} two boats came in late, with less fish than the year before.",
        "note-lights.txt": "The {} list of lights is on the table.",
    },
}
"""A line for each month; all notes but the first stop after one."""


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--keep", type=Path, metavar="FOLDER", help="keep everything in this new folder"
    )


def run(args: argparse.Namespace) -> None:
    with _interruptible(), _folder(args.keep) as folder:
        _record(folder)
        _look(folder)
        if args.keep:
            print(f"kept in {folder}: run (the call logs), rows.jsonl, asks.jsonl (what the engine")
            print(f"was sent), model (its tokenizer), {' and '.join(EXECUTIONS)} (the workspaces)")
        else:
            print("nothing is kept; with --keep FOLDER all of it is")


def _record(folder: Path) -> None:
    """Two executions through the real proxy; every process has ended when this returns."""
    import time

    from gyre.harnesses.command import environment
    from gyre.proxy.admin_client import control
    from gyre.testing.tokenizer import write_tokenizer

    model = write_tokenizer(folder / "model").resolve()
    with ExitStack() as stack:
        engine = _engine(stack, model, folder)
        _say("engine", f"{engine}, scripted, no model behind it")
        address = _proxy(stack, model, engine, folder / "run")
        _say("proxy", address)
        began = time.monotonic()
        agents = {}
        for name in EXECUTIONS:
            found = control(folder / "run", "POST", "executions", {"id": name})
            # What stands between this machine and others has no part in this.
            settings = environment(found["url"], found["key"]) | {"no_proxy": "*"}
            command = _agent_command(_workspace(folder / name, NOTES[name]))
            agents[name] = ChildProcess.start(stack, command, environment=settings)
            _say("open", f"{name} at {found['url']}")
        for name, agent in agents.items():
            for line in agent.said():
                _say(name, line)
            if status := agent.wait():
                message = f"the agent of {name} ended with status {status}"
                raise ConfigError(message)
            control(folder / "run", "POST", f"executions/{name}/close", {})
        _say("closed", f"{len(agents)} executions in {time.monotonic() - began:.1f} s")


def _look(folder: Path) -> None:
    """What the run can be used for, by the commands that anybody would use."""
    from gyre.cli.main import main

    commands = (
        ("inspect", str(folder / "run"), "--leaves"),
        ("export", str(folder / "run"), "--format", "jsonl", "--out", str(folder / "rows.jsonl")),
    )
    for command in commands:
        print(f"\n$ gyre {' '.join(command)}", flush=True)
        if status := main(command):
            raise SystemExit(status)


def _engine(stack: ExitStack, model: Path, folder: Path) -> str:
    import json
    import sys

    command = [sys.executable, "-m", "gyre.testing.engine_server", "--wire", "sglang"]
    command += ["--script", "gyre.testing.example_agent_script:script"]
    command += ["--tokenizer", str(model / "tokenizer.json"), "--log", str(folder / "asks.jsonl")]
    command += ["--chunk-tokens", "16", "--ready-file", "/dev/stdout"]
    child = ChildProcess.start(stack, command)
    for line in child.said():
        return f"sglang=http://127.0.0.1:{json.loads(line)['port']}"
    message = f"the scripted engine ended with status {child.wait()} before it was ready"
    raise ConfigError(message)


def _proxy(stack: ExitStack, model: Path, engine: str, run_folder: Path) -> str:
    import sys

    command = [sys.executable, "-m", "gyre", "proxy", "--engine", engine, "--port", "0"]
    command += ["--model", str(model), "--family", FAMILY, "--run", str(run_folder)]
    child = ChildProcess.start(stack, command)
    said = ""
    for line in child.said():
        if line == "ready":
            return said.removeprefix("gyre proxy: ")
        said = line
    message = f"the proxy ended with status {child.wait()} before it was ready"
    raise ConfigError(message)


def _agent_command(workspace: Path) -> list[str]:
    import sys

    from gyre.testing import example_agent
    from gyre.testing import example_agent_script as demo_script

    command = [sys.executable, example_agent.__file__, demo_script.TASK]
    return [*command, "--workspace", str(workspace), "--compact-at", str(COMPACT_AT)]


def _workspace(folder: Path, notes: dict[str, str]) -> Path:
    folder.mkdir()
    for number, (name, line) in enumerate(notes.items()):
        months = MONTHS.split()[: None if number == 0 else 1]
        (folder / name).write_text("".join(line.format(month) + "\n" for month in months))
    return folder


@contextmanager
def _folder(keep: Path | None) -> Iterator[Path]:
    """A new folder that is kept, or one that is gone afterwards."""
    import tempfile

    if keep is None:
        with tempfile.TemporaryDirectory(prefix="gyre-demo-") as name:
            yield Path(name)
        return
    try:
        keep.mkdir(parents=True)
    except OSError as error:
        message = f"--keep {keep}: expected a folder that can be made: {error.strerror}"
        raise ConfigError(message) from error
    yield keep


@contextmanager
def _interruptible() -> Iterator[None]:
    """Being told to end is taken like Ctrl-C, so that no process is left behind."""
    import signal

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _say(who: str, what: str) -> None:
    print(f"{who:<10} {what}", flush=True)
