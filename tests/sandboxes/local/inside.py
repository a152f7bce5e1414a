"""Shell scripts in local sandboxes, for tests to look at what they can do."""

import asyncio
import secrets
from dataclasses import dataclass, field
from pathlib import Path

from tests.waiting import PATIENCE_S

from gyre.sandboxes.local.sandbox import LocalSandbox, SandboxLayout
from gyre.types.tasks import Command


@dataclass
class Inside:
    """One sandbox in a folder; `place` and `made` change how it is put together."""

    folder: Path
    place: dict = field(default_factory=dict)
    made: dict = field(default_factory=dict)

    def __post_init__(self):
        self.workspace = self.folder / "workspace"
        self.workspace.mkdir(parents=True, exist_ok=True)
        settings = {"folder": self.folder / "place", "home": self.folder / "home"}
        place = SandboxLayout(**(settings | self.place))
        self.mark = secrets.token_hex(16)
        self.sandbox = LocalSandbox(self.mark, place, **self.made)

    @property
    def output(self):
        return (self.folder / "output").read_text(errors="replace")

    async def start(self, script, **variables):
        await self.sandbox.prepare(str(self.workspace))
        command = Command(argv=("sh", "-c", script), variables=variables)
        output = str(self.folder / "output")
        await self.sandbox.start(command, output=output, most_bytes=2**20)

    async def run(self, script, **variables):
        """Its status, with nothing of it left running."""
        try:
            async with asyncio.timeout(PATIENCE_S):
                await self.start(script, **variables)
                return await self.sandbox.wait()
        finally:
            await self.sandbox.kill()


def ran(folder, script, *, place=None, made=None, **variables):
    """The status and the output of a script."""
    inside = Inside(folder, place or {}, made or {})
    status = asyncio.run(inside.run(script, **variables))
    return status, inside.output
