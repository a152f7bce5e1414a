"""The protocols around one execution: task source, harness, sandbox and evaluator.

They stand apart because a supervisor needs these alone, and there is one for every execution.
"""

from typing import Protocol

from gyre.types.outcomes import Finding
from gyre.types.tasks import Command, Endpoint, Level, Task


class TaskSource(Protocol):
    """Tasks in a fixed order, each with an id of its own; a bad one raises TaskError at once."""

    def __len__(self) -> int: ...

    def get(self, index: int) -> Task:
        """The same task for the same index, whenever the source is opened."""
        ...


class Harness(Protocol):
    """An agent program."""

    def command(self, task: Task, endpoint: Endpoint) -> Command:
        """How it is started on a task; the key is in no argument, because all processes see those.

        The usual variables for address and key are there already; these come on top.
        """
        ...


class Sandbox(Protocol):
    """Where the programs of one execution run, one at a time; raises SandboxError."""

    @property
    def levels(self) -> tuple[Level, ...]:
        """What holds programs back, in order, once it is prepared."""
        ...

    def address(self, url: str) -> str:
        """Where programs inside reach this address of the host."""
        ...

    async def prepare(self, workspace: str) -> None:
        """Programs work in this folder of the host from now on."""
        ...

    async def start(self, command: Command, *, output: str, most_bytes: int) -> None:
        """The program runs, with no input; the beginning and the end of what it prints are kept."""
        ...

    async def wait(self) -> int:
        """Its exit status, or minus the signal that ended it; its children may still run.

        Cancelling this ends nothing. SandboxError says which limit it was ended for.
        """
        ...

    async def kill(self) -> None:
        """Nothing that was started here runs any more, however it was detached."""
        ...

    async def freeze(self) -> None:
        """Nothing runs, and the folder on the host holds what was left, for good."""
        ...


class Evaluator(Protocol):
    """Judges what an execution left behind (SPEC 6.2)."""

    @property
    def name(self) -> str: ...

    async def assess(self, workspace: str, scratch: str, *, within_s: float) -> Finding:
        """What it finds; EvaluatorError when it cannot be asked or breaks.

        `workspace` is a copy that it may change, `scratch` an empty folder. Nothing of it runs
        afterwards, and it takes no longer than it is given.
        """
        ...
