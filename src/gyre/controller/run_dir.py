"""The paths of a run folder, and the folder in memory that its processes share."""

import secrets
import shutil
import tempfile
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

from gyre.model.checkpoint_store import CHECKPOINTS
from gyre.storage.files import RUN_FILE, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class RunDir:
    """The paths of one run folder."""

    run: Path
    share: Path
    """In memory; gone with the run."""

    @property
    def token(self) -> Path:
        return self.run / "admin.token"

    @property
    def checkpoints(self) -> Path:
        """A folder for each version that stays."""
        return self.run / CHECKPOINTS

    @property
    def file(self) -> Path:
        """The run file, every default written out."""
        return self.run / RUN_FILE

    @property
    def facts_endpoint(self) -> Path:
        """Where supervisors post facts, and the token that they show; a secret."""
        return self.run / "desk.json"

    @property
    def shares(self) -> Path:
        """Names the folder in memory that its processes share."""
        return self.run / "share"

    @property
    def journal(self) -> Path:
        return self.run / "journal"

    @property
    def attempts(self) -> Path:
        """Folders of executions, by name."""
        return self.run / "attempts"

    def plan(self, name: str) -> Path:
        return self.run / "plans" / f"{name}.json"

    @property
    def pids(self) -> Path:
        return self.run / "pids"

    def pid(self, name: str) -> Path:
        """Holds the id of the process that has that name now."""
        return self.pids / name

    def note_pid(self, name: str, pid: int) -> None:
        """Where people and tests find it."""
        self.pids.mkdir(exist_ok=True, mode=0o700)
        self.pid(name).write_text(str(pid))

    def log(self, name: str) -> Path:
        return self.run / "logs" / f"{name}.log"


MEMORY = Path("/dev/shm")
PREFIX = "gyre-"
"""What their names begin with; only what is named so is believed to be one."""


def opened(run: Path, stack: AsyncExitStack, *, in_memory: bool = True) -> RunDir:
    """The paths of a run, with a folder in memory that is removed with the stack.

    It is noted before it is there, so that a later controller removes what this one could not.
    Not in memory, it lies in the run's folder, because processes of other machines see that.
    """
    run.mkdir(parents=True, exist_ok=True, mode=0o700)
    memory = MEMORY if MEMORY.is_dir() else Path(tempfile.gettempdir())
    memory = memory if in_memory else run.absolute()
    places = RunDir(run=run.absolute(), share=memory / f"{PREFIX}{secrets.token_hex(8)}")
    _note(places, [*_noted(places), places.share])
    places.share.mkdir(mode=0o700)
    stack.callback(shutil.rmtree, places.share, ignore_errors=True)
    return places


def remove_earlier(places: RunDir) -> None:
    """Removes shares of controllers that were killed; only the one that holds the run may."""
    for share in _noted(places):
        if share.name.startswith(PREFIX) and share != places.share:
            shutil.rmtree(share, ignore_errors=True)
    # A full disk leaves names of what is gone, which does no harm.
    with suppress(OSError):
        _note(places, [places.share])


def _noted(places: RunDir) -> list[Path]:
    lines = places.shares.read_text().splitlines() if places.shares.exists() else []
    return [Path(line) for line in lines]


def _note(places: RunDir, shares: list[Path]) -> None:
    replace(places.shares, "".join(f"{share}\n" for share in shares).encode())
