"""A program as the stage starts it: as the package does, in a home that can be looked at."""

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gyre.config.run_config import HarnessConfig
from gyre.harnesses.command import CommandHarness, environment
from gyre.harnesses.install import asked_version
from gyre.harnesses.program import ContextWindow
from gyre.harnesses.registry import InstalledProgram, cache, find, open_harness, picked
from gyre.sandboxes.process import write_home
from gyre.types.tasks import Endpoint, EvaluationRule, Task

INSTALLER = Path(__file__).parents[3] / "scripts" / "harnesses"
NAMES = {
    "claude-code-2.1.220": "claude_code@2.1.220",
    "claude-code-2.1.325": "claude_code@2.1.325",
    "codex": "codex",
    "opencode": "opencode",
    "qwen-code": "qwen_code",
    "mini-swe-agent": "mini_swe_agent",
}
"""What scenes call a program, and what `gyre harness prepare` calls it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where one run of a program happens."""

    home: Path
    work: Path
    url: str
    """Of the execution: what comes before /v1."""
    key: str
    options: Mapping[str, int | float | str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """How to start a program; files it reads have been written."""

    arguments: list[str]
    environment: Mapping[str, str]


def launch(name: str, place: Place, task: str) -> Launch:
    """As a supervisor launches it, but for the sandbox."""
    program, version = picked(NAMES[name])
    section = HarnessConfig(kind=program.name, version=version)
    opened = open_harness(section, _window(place.options))
    harness = CommandHarness(opened.argv, opened.variables, home=opened.home, layers=opened.layers)
    asked = Task(id="t", instruction=task, files=None, evaluation=EvaluationRule(argv=("true",)))
    command = harness.command(asked, Endpoint(url=place.url, key=place.key))
    write_home(place.home, command.home)
    return Launch(
        arguments=list(command.argv[len(argv(name)) :]),
        environment=plain_environment(place)
        | environment(place.url, place.key)
        | command.variables,
    )


def _window(options: Mapping[str, int | float | str]) -> ContextWindow:
    """Windows that scripted conversations fill."""
    context = int(options.get("context", 131_072))
    compact_at = int(options.get("compact_at", context - 4096))
    fraction = float(options.get("compact_fraction", compact_at / context))
    return ContextWindow(context_tokens=context, compact_at=int(context * fraction))


def install() -> Path:
    """The folder that holds the programs, filled if it was not there (that needs a network)."""
    subprocess.run([sys.executable, str(INSTALLER)], check=True, stdout=sys.stderr)
    return cache()


def argv(name: str) -> list[str]:
    """The program's argument list before any of ours."""
    return list(_prepared(name).argv)


def version_of(name: str) -> str:
    """What the installed program itself says."""
    found = _prepared(name)
    return asked_version(found.program, found.folder)


def _prepared(name: str) -> InstalledProgram:
    found = find(*picked(NAMES[name]), cache())
    assert found is not None, f"{name} is not installed"
    return found


def plain_environment(place: Place) -> dict[str, str]:
    """What every program gets; nothing of the tests' own environment but the path."""
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(place.home),
        "LANG": "C.UTF-8",
        "TERM": "dumb",
        "TMPDIR": str(place.home),
    }
