"""A program as the stage starts it: its arguments, its environment, and where it may write."""

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Protocol

INSTALLER = Path(__file__).parents[3] / "scripts" / "harnesses"


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


class Program(Protocol):
    """What each program's module offers."""

    def launch(self, place: Place, task: str) -> Launch: ...


def installer() -> ModuleType:
    """scripts/harnesses as a module."""
    loader = SourceFileLoader("harnesses", str(INSTALLER))
    spec = importlib.util.spec_from_loader("harnesses", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def install() -> Path:
    """The folder that holds the programs, filled if it was not there (that needs a network)."""
    folder: Path = installer().cache_folder()
    if not (folder / "versions.json").exists():
        subprocess.run([sys.executable, str(INSTALLER)], check=True, stdout=sys.stderr)
    return folder


def argv(name: str) -> list[str]:
    """The program's argument list before any of ours."""
    tools = installer()
    found: list[str] = tools.argv_in(tools.cache_folder(), name)
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


def write_json(path: Path, data: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(data, indent=2))
