"""What every sandbox promises behind the Sandbox port; each promise is one function."""

import asyncio
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import pytest
from tests.controller.support.supervised import is_alive
from tests.waiting import until

from gyre.types.errors import InternalError, SandboxError
from gyre.types.places import Sandbox
from gyre.types.tasks import Command

ESCAPE = "(setsid sh -c 'trap \"\" TERM HUP; echo $$ > escaped; while :; do sleep 0.1; done' &)"
"""A child in a session of its own, whose parent is gone, and which hears no request."""


STAYS = "echo $$ > pid; while :; do sleep 0.1; done"
"""Becomes no other program once its pid is known: in between nobody could tell whose it is."""


class Subject(Protocol):
    """Sandboxes under test."""

    workspace: Path

    def make(self) -> Sandbox:
        """A new one each time; all may be used at once."""
        ...

    def is_alive(self, pid: int) -> bool:
        """Of a pid as programs inside see it."""
        ...


class InNamespaces:
    """What subjects share whose programs have pids of their own."""

    def __init__(self, folder: Path) -> None:
        self.workspace = folder / "workspace"
        self.workspace.mkdir()
        self.folder = folder
        self._marks: list[str] = []

    def mark(self) -> str:
        """A new one, by which the processes of a sandbox are known."""
        self._marks.append(secrets.token_hex(16))
        return self._marks[-1]

    def is_alive(self, pid: int) -> bool:
        return any(pid == inside and is_alive(outside) for inside, outside in self._known())

    def _known(self) -> Iterator[tuple[int, int]]:
        """Pids inside and outside of all processes that bear one of the marks."""
        for folder in Path("/proc").iterdir():
            if folder.name.isdigit():
                try:
                    environment = (folder / "environ").read_text(errors="replace")
                    status = (folder / "status").read_text()
                except OSError:
                    continue
                if any(mark in environment for mark in self._marks):
                    pids = status.partition("NSpid:")[2].partition("\n")[0].split()
                    yield int(pids[-1]), int(folder.name)


async def run(subject: Subject, script: str, sandbox: Sandbox | None = None, **variables: str):
    """The exit status and the output of a shell script, after which nothing of it runs."""
    used = sandbox or subject.make()
    output = subject.workspace.parent / "output"
    await used.prepare(str(subject.workspace))
    command = Command(argv=("sh", "-c", script), variables=variables)
    await used.start(command, output=str(output), most_bytes=1000)
    status = await used.wait()
    await used.kill()
    return status, output.read_bytes()


async def wait_for(path: Path) -> str:
    await until(lambda: path.exists() and path.read_text(), path.name)
    return path.read_text()


async def started(subject: Subject, script: str) -> Sandbox:
    sandbox = subject.make()
    await sandbox.prepare(str(subject.workspace))
    output = str(subject.workspace.parent / "output")
    command = Command(argv=("sh", "-c", script))
    await sandbox.start(command, output=output, most_bytes=1000)
    return sandbox


async def the_exit_status_is_told(subject: Subject) -> None:
    assert 0 == (await run(subject, ":"))[0]
    assert 3 == (await run(subject, "exit 3"))[0]


async def the_signal_that_ended_a_program_is_told(subject: Subject) -> None:
    assert -9 == (await run(subject, "kill -9 $$"))[0]


async def programs_work_in_the_workspace(subject: Subject) -> None:
    (subject.workspace / "given").write_text("here")
    await run(subject, "cat given > made")

    assert "here" == (subject.workspace / "made").read_text()


async def programs_see_what_they_are_given_and_no_more(subject: Subject) -> None:
    os.environ["CONTRACT_SECRET"] = "not for programs"
    try:
        _, output = await run(subject, 'echo "$LEVEL-$CONTRACT_SECRET"', LEVEL="3")
    finally:
        del os.environ["CONTRACT_SECRET"]

    assert b"3-\n" == output


async def programs_find_their_files_and_layers(subject: Subject) -> None:
    """Layers are folders of the host, and lie where they do there."""
    layer = subject.workspace.parent / "layer"
    layer.mkdir()
    (layer / "tool").write_text("sharp")
    command = Command(
        argv=("sh", "-c", f'cat "$HOME/.agent/settings" {layer}/tool'),
        home={".agent/settings": "quiet and "},
        layers=(str(layer),),
    )
    sandbox = subject.make()
    output = subject.workspace.parent / "output"
    await sandbox.prepare(str(subject.workspace))
    await sandbox.start(command, output=str(output), most_bytes=1000)
    status = await sandbox.wait()
    await sandbox.kill()

    assert (0, b"quiet and sharp") == (status, output.read_bytes())


async def there_is_no_input(subject: Subject) -> None:
    assert (0, b"") == await run(subject, "cat")


async def the_beginning_and_the_end_of_the_output_are_kept(subject: Subject) -> None:
    _, output = await run(subject, "echo begin; head -c 300000 /dev/zero; echo end >&2")

    assert output.startswith(b"begin\n")
    assert output.endswith(b"end\n")
    assert len(output) < 1100


async def short_output_is_kept_whole(subject: Subject) -> None:
    text = "0123456789" * 100
    _, output = await run(subject, f"printf {text}")

    assert text.encode() == output


async def a_program_that_cannot_start_is_an_error_and_not_the_end(subject: Subject) -> None:
    sandbox = subject.make()
    await sandbox.prepare(str(subject.workspace))
    output = str(subject.workspace.parent / "output")
    for argv in [("/no/such/program",), ("sh", "-c", "a\0b"), ("sh", "x" * 10**6), ()]:
        with pytest.raises(SandboxError):
            await sandbox.start(Command(argv=argv), output=output, most_bytes=1000)

    assert 0 == (await run(subject, ":", sandbox))[0]


async def one_program_runs_at_a_time(subject: Subject) -> None:
    sandbox = await started(subject, "sleep 600")
    with pytest.raises(InternalError):
        await sandbox.start(Command(argv=("true",)), output="/dev/null", most_bytes=10)
    await sandbox.kill()

    assert 0 == (await run(subject, ":", sandbox))[0]


async def killing_ends_what_hides_and_what_does_not_listen(subject: Subject) -> None:
    """FAULTS 13."""
    sandbox = await started(subject, ESCAPE + "; sleep 600")
    escaped = int(await wait_for(subject.workspace / "escaped"))
    before = subject.is_alive(escaped)
    await sandbox.kill()

    assert (True, False) == (before, subject.is_alive(escaped))


async def what_a_finished_program_left_running_is_killed(subject: Subject) -> None:
    """Whether it lives until then is the sandbox's affair."""
    sandbox = await started(subject, ESCAPE + "; until [ -s escaped ]; do sleep 0.01; done")
    escaped = int(await wait_for(subject.workspace / "escaped"))
    await sandbox.wait()
    await sandbox.freeze()

    assert not subject.is_alive(escaped)
    assert str(escaped) == (subject.workspace / "escaped").read_text().strip()


async def cancelling_the_wait_ends_nothing(subject: Subject) -> None:
    sandbox = await started(subject, STAYS)
    pid = int(await wait_for(subject.workspace / "pid"))
    waiting = asyncio.create_task(sandbox.wait())
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    before = subject.is_alive(pid)
    await sandbox.kill()

    assert (True, False) == (before, subject.is_alive(pid))


async def killing_nothing_is_nothing(subject: Subject) -> None:
    sandbox = subject.make()
    await sandbox.kill()
    await sandbox.prepare(str(subject.workspace))
    await sandbox.kill()
    await sandbox.kill()


async def one_sandbox_does_not_touch_another(subject: Subject) -> None:
    other = await started(subject, STAYS)
    pid = int(await wait_for(subject.workspace / "pid"))
    one = await started(subject, ESCAPE)
    await one.kill()
    before = subject.is_alive(pid)
    await other.kill()

    assert (True, False) == (before, subject.is_alive(pid))


EVERY_SANDBOX = [
    the_exit_status_is_told,
    the_signal_that_ended_a_program_is_told,
    programs_work_in_the_workspace,
    programs_see_what_they_are_given_and_no_more,
    programs_find_their_files_and_layers,
    there_is_no_input,
    the_beginning_and_the_end_of_the_output_are_kept,
    short_output_is_kept_whole,
    a_program_that_cannot_start_is_an_error_and_not_the_end,
    one_program_runs_at_a_time,
    killing_ends_what_hides_and_what_does_not_listen,
    what_a_finished_program_left_running_is_killed,
    cancelling_the_wait_ends_nothing,
    killing_nothing_is_nothing,
    one_sandbox_does_not_touch_another,
]
