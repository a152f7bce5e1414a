"""Where agent programs are installed, a folder for each version, and which of them are there."""

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path

from gyre.harnesses import harnesses_claude_code as claude_code
from gyre.harnesses import harnesses_codex as codex
from gyre.harnesses import harnesses_mini_swe_agent as mini_swe_agent
from gyre.harnesses import harnesses_opencode as opencode
from gyre.harnesses import harnesses_qwen_code as qwen_code
from gyre.harnesses.program import AgentProgram

PROGRAMS: dict[str, AgentProgram] = {
    one.PROGRAM.name: one.PROGRAM
    for one in (claude_code, codex, mini_swe_agent, opencode, qwen_code)
}
LOCKS = Path(__file__).parent / "lock"
"""A folder for each version whose packages are known by their hashes."""
RECORD = "prepared.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class InstalledProgram:
    """A program that can be started without a network."""

    program: AgentProgram
    version: str
    folder: Path
    said: str
    """What it answered when it was asked for its version."""
    layers: tuple[str, ...]
    """Folders that it needs: its own, and its interpreter's where that is not the system's."""

    @property
    def argv(self) -> tuple[str, ...]:
        return placed(self.folder, self.program.start)


def cache() -> Path:
    """The folder that all versions of all programs are in."""
    return Path.home() / ".cache" / "gyre" / "harnesses"


def lock_of(program: AgentProgram, version: str) -> Path | None:
    """The files that name its packages with their hashes; None for a version that has none."""
    folder = LOCKS / f"{program.name}-{version}"
    return folder if folder.is_dir() else None


def locked_versions(program: AgentProgram) -> list[str]:
    """Newest last."""
    found = [one.name.partition("-")[2] for one in LOCKS.glob(f"{program.name}-*")]
    return sorted(found, key=lambda version: [int(part) for part in version.split(".")])


def folder_for(program: AgentProgram, version: str, root: Path) -> Path:
    """Where a version is or will be; another lock of the same version is another folder."""
    name = f"{program.name}-{version}"
    lock = lock_of(program, version)
    if lock is not None:
        digest = hashlib.sha256()
        for path in sorted(lock.iterdir()):
            digest.update(hashlib.sha256(path.read_bytes()).digest())
        name = f"{name}-{digest.hexdigest()[:12]}"
    return root / name


def find(program: AgentProgram, version: str, root: Path) -> InstalledProgram | None:
    """The version, if it is there and whole."""
    folder = folder_for(program, version, root)
    try:
        record = json.loads((folder / RECORD).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    starts = placed(folder, program.start)[0]
    if not os.access(starts, os.X_OK):
        return None
    return InstalledProgram(
        program=program,
        version=version,
        folder=folder,
        said=record["said"],
        layers=(str(folder), *record["layers"]),
    )


def placed(folder: Path, parts: tuple[str, ...]) -> tuple[str, ...]:
    """Parts of an argument list, of which those with a slash are files in the folder."""
    return tuple(str(folder / part) if "/" in part else part for part in parts)
