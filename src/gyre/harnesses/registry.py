"""Harness by name; which versions are installed."""

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path

from gyre.config.run_config import HarnessConfig
from gyre.harnesses import claude_code, codex, mini_swe_agent, opencode, qwen_code
from gyre.harnesses.program import EVERYWHERE, AgentProgram, ContextWindow
from gyre.types.errors import ConfigError
from gyre.types.tasks import Command

PROGRAMS: dict[str, AgentProgram] = {
    module.PROGRAM.name: module.PROGRAM
    for module in (claude_code, codex, mini_swe_agent, opencode, qwen_code)
}
LOCKS = Path(__file__).parent / "lock"
"""A folder for each version whose packages are known by their hashes."""
RECORD = "prepared.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class InstalledProgram:
    """An agent program that is installed, so that it starts without a network."""

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
    found = [folder.name.partition("-")[2] for folder in LOCKS.glob(f"{program.name}-*")]
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


HERE = "{here}"


def open_harness(
    section: HarnessConfig, window: ContextWindow, *, root: Path | None = None
) -> Command:
    """ConfigError for a program that is not installed, with what installs it."""
    if section.kind == "command":
        return Command(
            argv=tuple(_placed(word) for word in section.argv or ()),
            variables={name: _placed(value) for name, value in section.env.items()},
        )
    program = PROGRAMS[section.kind]
    version = program.version if section.version is None else section.version
    if not _is_version(version):
        message = f"harness.version: expected a version as {program.version}, found {version!r}"
        raise ConfigError(message)
    found = find(program, version, cache() if root is None else root)
    if found is None:
        raise ConfigError(
            f"harness.kind: {program.name} {version} is not prepared on this machine; "
            f"`gyre harness prepare {named(program, version)}` does it"
        )
    return Command(
        argv=(*found.argv, *program.flags, *section.args, *program.task),
        variables={**EVERYWHERE, **program.variables(window), **section.env},
        home=program.home(window),
        layers=found.layers,
    )


def _placed(text: str) -> str:
    """With the folder that the command runs in; it is the only place that no execution differs in.

    What begins with it is then the path of a file, which sandboxes show.
    """
    return text.replace(HERE, str(Path.cwd()))


def named(program: AgentProgram, version: str) -> str:
    """NAME, or NAME@VERSION where it is not the usual one."""
    return program.name if version == program.version else f"{program.name}@{version}"


def picked(name: str) -> tuple[AgentProgram, str]:
    """The program and the version that NAME or NAME@VERSION means."""
    kind, at, version = name.partition("@")
    program = PROGRAMS.get(kind)
    if program is None:
        raise ConfigError(f"{name}: expected one of {', '.join(PROGRAMS)}")
    if at and not _is_version(version):
        raise ConfigError(f"{name}: expected a version as in {program.name}@{program.version}")
    return program, version or program.version


def _is_version(text: str) -> bool:
    """Numbers and points; it becomes part of a path and of what npm is asked for."""
    return all(part.isascii() and part.isdecimal() for part in text.split("."))
