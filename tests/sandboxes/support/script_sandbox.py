"""Shell scripts in a sandbox of any kind, run in a folder of the test."""

import asyncio
import secrets
from dataclasses import dataclass, field
from pathlib import Path

from tests.waiting import PATIENCE_S

from gyre.types.tasks import Command


@dataclass
class ScriptSandbox:
    """One sandbox in a folder; `place` and `made` change how it is put together."""

    folder: Path
    place: dict = field(default_factory=dict)
    made: dict = field(default_factory=dict)

    def __post_init__(self):
        self.workspace = self.folder / "workspace"
        self.workspace.mkdir(parents=True, exist_ok=True)
        self.mark = secrets.token_hex(16)
        settings = {"folder": self.folder / "place", "home": self.folder / "home"}
        self.sandbox = self.make(settings | self.place)

    def make(self, settings):
        """A sandbox of the kind under test."""
        raise NotImplementedError

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
