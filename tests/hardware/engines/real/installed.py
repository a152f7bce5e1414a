"""Where scripts/engines put the engines and the model."""

import importlib.util
import subprocess
import sys
from functools import cache
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType

INSTALLER = Path(__file__).parents[4] / "scripts" / "engines"


@cache
def installer() -> ModuleType:
    """scripts/engines as a module."""
    loader = SourceFileLoader("engines_installer", str(INSTALLER))
    spec = importlib.util.spec_from_loader("engines_installer", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    # What installers have in common is beside it, where it is looked for when one is run.
    sys.path.append(str(INSTALLER.parent))
    loader.exec_module(module)
    return module


@cache
def folder() -> Path:
    """The cache, filled if it was not there (that needs a network)."""
    found: Path = installer().cache_folder()
    if not (found / "versions.json").exists():
        subprocess.run([sys.executable, str(INSTALLER)], check=True, stdout=sys.stderr)
    return found


def model() -> Path:
    made: Path = folder() / installer().MODEL
    return made


def python(engine: str) -> Path:
    made: Path = installer().python_in(folder(), engine)
    return made
