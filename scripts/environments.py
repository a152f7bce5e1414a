"""Virtual environments that are installed once, from committed pins, into a cache.

The cache is ${GYRE_CACHE:-~/.cache/gyre}. A folder in it has a hash of what it is made from in its
name, and is there whole or not at all.
"""

import argparse
import hashlib
import json
import os
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

HARDWARE = Path(__file__).resolve().parent.parent / "tests" / "hardware"
"""Where the pins are, beside the tests that need them."""
VERSIONS = "versions.json"
"""What a folder holds; a folder without it is none."""
SEES = "around.pth"
"""Names the packages of the environment that this runs in."""


def folder_for(name: str, made_from: Iterable[Path], around: str = "") -> Path:
    """Where something of this name is or will be; another folder if any of the files changes."""
    digest = hashlib.sha256(around.encode())
    for path in (Path(__file__), *made_from):
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    root = os.environ.get("GYRE_CACHE") or Path.home() / ".cache" / "gyre"
    return Path(root).expanduser() / f"{name}-{digest.hexdigest()[:12]}"


def is_there(folder: Path) -> bool:
    return (folder / VERSIONS).exists()


def make(folder: Path, build: Callable[[Path], Mapping[str, str]]) -> None:
    """`folder` is there, whole, whoever else is making it; `build` fills one and says with what."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    prefix = f"{folder.name.rpartition('-')[0]}-building-"
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=prefix) as building:
        made = Path(building) / "made"
        made.mkdir()
        (made / VERSIONS).write_text(json.dumps(build(made), indent=2) + "\n")
        try:
            made.rename(folder)
        except OSError:
            # Another installation of the same pins came first; a non-empty folder stays as it is.
            if not is_there(folder):
                raise


def pip_install(python: Path | str, pins: Path, *options: str | Path) -> None:
    """Exactly what is pinned, and none of what it would bring along."""
    quiet = ["--quiet", "--disable-pip-version-check", "--no-deps", "--require-hashes"]
    command = [python, "-m", "pip", "install", *quiet, *options, "-r", pins]
    subprocess.run(command, check=True, stdout=sys.stderr)


def packages_of(environment: Path) -> Path:
    """Where a virtual environment has its packages."""
    return next((environment / "lib").glob("python3.*")) / "site-packages"


def versions(python: Path, named: Iterable[str]) -> dict[str, str]:
    """What an environment itself says it holds."""
    code = "import sys, importlib.metadata as m; print(*(m.version(n) for n in sys.argv[1:]))"
    named = tuple(named)
    done = subprocess.run([python, "-c", code, *named], check=True, capture_output=True, text=True)
    return dict(zip(named, done.stdout.split(), strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """One that holds what is pinned and sees the packages of the one that runs this."""

    name: str
    script: Path
    """Whose it is; another environment if that changes."""
    pins: Path
    named: tuple[str, ...]
    """Distributions whose versions are told."""
    finish: Callable[[Path], None] | None = None
    """What is done to its packages last."""

    @property
    def folder(self) -> Path:
        return folder_for(self.name, (self.script, self.pins), _around())

    def main(self, description: str | None) -> int:
        """A script that installs it and nothing else."""
        parser = argparse.ArgumentParser(description=description, allow_abbrev=False)
        parser.add_argument("--where", action="store_true", help="print the interpreter only")
        return self.tell(where=parser.parse_args().where)

    def tell(self, *, where: bool) -> int:
        """Prints its interpreter, or installs it and prints its versions."""
        folder = self.folder
        if where:
            print(_python(folder))
            return 0
        if not is_there(folder):
            make(folder, self._build)
        found = versions(_python(folder), self.named)
        print(*(f"{name} {version}" for name, version in found.items()), sep="\n")
        return 0

    def _build(self, folder: Path) -> dict[str, str]:
        subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
        pip_install(_python(folder), self.pins)
        packages = packages_of(folder / "venv")
        (packages / SEES).write_text(f"import site; site.addsitedir({_around()!r})\n")
        if self.finish is not None:
            self.finish(packages)
        return versions(_python(folder), self.named)


def _python(folder: Path) -> Path:
    return folder / "venv" / "bin" / "python"


def _around() -> str:
    """Where the packages of the environment are that this runs in."""
    return sysconfig.get_path("purelib")
