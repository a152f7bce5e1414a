"""The harness that a run file names, as a command with places that each execution fills in."""

from pathlib import Path

from gyre.config.run_sections import HarnessConfig
from gyre.harnesses.prepared import PROGRAMS, cache, find
from gyre.harnesses.program import EVERYWHERE, AgentProgram, ContextWindow
from gyre.types.errors import ConfigError
from gyre.types.tasks import Command

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
        message = (
            f"harness.kind: {program.name} {version} is not prepared on this machine; "
            f"`gyre harness prepare {named(program, version)}` does it"
        )
        raise ConfigError(message)
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
        message = f"{name}: expected one of {', '.join(PROGRAMS)}"
        raise ConfigError(message)
    if at and not _is_version(version):
        message = f"{name}: expected a version as in {program.name}@{program.version}"
        raise ConfigError(message)
    return program, version or program.version


def _is_version(text: str) -> bool:
    """Numbers and points; it becomes part of a path and of what npm is asked for."""
    return all(part.isascii() and part.isdecimal() for part in text.split("."))
